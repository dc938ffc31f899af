"""`rope-exp export`: a run's model for transformers."""

from pathlib import Path

from rope_exp.commands._parser import Parser


def main(argv: list[str]) -> int:
    """Write a run's model and tokenizer as a folder that transformers loads."""
    parser = Parser("export", "Write a run's model as a folder that transformers loads.")
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("out", metavar="OUT", type=Path, help="a new folder")
    parser.add_argument(
        "--code",
        choices=("auto", "always"),
        default="auto",
        help="auto: transformers' own class if it has one for this model; always: our code",
    )
    parser.add_argument("--step", type=int, help="of the checkpoint; the newest otherwise")
    parser.add_trust_code()
    args = parser.parse_args(argv)

    # Imported late, because transformers takes seconds to import.
    from rope_exp.export.write import export, loading

    name = export(args.folder, args.out, args.code, args.step, trust_code=args.trust_code)
    print(f"{args.out}: {name}; in Python: {loading(name, str(args.out))}")
    return 0
