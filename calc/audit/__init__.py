"""Who is right? Published numbers against named ledgers."""
