"""Anything → a Markdown table, an SVG figure or plain text, always returned as a string.

Pages print what these functions return; nothing here computes a byte that the rooms above did not.
"""
