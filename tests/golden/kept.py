"""Results of code that was deleted after v0.2.0."""

# Patterns of fnmatch below results/: * matches / as well.
FROM_DELETED_CODE = (
    "*/changes.csv",
    "*/changes.md",
    "bench/laws.md",
    "cost.md",
    "lead_26m/simulated.csv",
    "ngrams.md",
    "lead_26m/simulated.csv",
    "nine_26m/questions.md",
    "nine_26m/simulated_*.csv",
    "noise/*.csv",
    "noise/noise.md",
    "outside/*.csv",
    "outside/*.md",
    "replicates.md",
    "scaling/scaling.md",
)
