"""Results of code that was deleted after v0.2.0: they stay, and nothing makes them again."""

FROM_DELETED_CODE = (
    "bench/*",
)
