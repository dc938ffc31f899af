"""Results of code that was deleted after v0.2.0."""

# Patterns of fnmatch, from the top of the repository: * matches / as well.
FROM_DELETED_CODE = (
    "results/*/changes.csv",
    "results/*/changes.md",
    "results/bench/laws.md",
    "results/cost.md",
    "results/lead_26m/simulated.csv",
    "results/ngrams.md",
    "results/nine_26m/questions.md",
    "results/nine_26m/simulated_*.csv",
    "results/noise/*.csv",
    "results/noise/noise.md",
    "results/outside/*.csv",
    "results/outside/*.md",
    "results/replicates.md",
    "results/scaling/scaling.md",
)
