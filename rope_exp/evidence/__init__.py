"""Which runs may be compared, and what their differences say."""
