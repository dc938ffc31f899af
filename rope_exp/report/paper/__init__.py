"""Figures for papers: 6.75 inches wide, 8-point text, SVG, readable in grey."""
