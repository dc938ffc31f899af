"""Figures as a paper prints them: 6.75 inches wide, 8 points, PDF beside PNG, readable in grey."""
