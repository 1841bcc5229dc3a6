"""``msprobe rollout_check``."""

from __future__ import annotations

import argparse

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.common.progress import ProgressCallback

_NUMBER = arguments.count("a number")
_SOURCES = {
    "mask": "1 for the tokens that count",
    "tokens": "ids of the tokens",
    "prompt-lengths": "tokens of the prompt of each sequence",
    "step": "the step of each sequence; not needed for a folder of SingleSave",
    "sequences": "ids of sequences, or of the sequence of each token",
    "rollout-entropy": "entropy of the distribution of each token, in nats",
    "top-logprobs": "log-probabilities of the likeliest tokens at each position, for garbled responses",
    "current": "log-probabilities after the update; TRAINING then has those at sampling time",
}


class RolloutCheck(Question):
    """Compare the log-probabilities of a rollout with those that the training computes of the same tokens.

    ROLLOUT and TRAINING are FILE or FILE:key (.npy, .npz, .pt, .safetensors, .jsonl, .parquet), or DIR:key of a folder
    that SingleSave wrote, as are the values of the options for sources. The answer is the kind of mismatch, the tokens
    and the sequence to look at. The status is 0 if rounding explains all, 1 if not, 2 if a source is refused.

    With --tables, ROLLOUT and TRAINING are folders that SingleSave wrote, and every value that both have is compared: a
    workbook for each, as SingleComparator writes it. The status is 0 if all are equal.
    """

    name = "rollout_check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("rollout", metavar="ROLLOUT", type=arguments.path, help="log-probabilities of the inference engine")
        of_trainer = "log-probabilities of the trainer for the same tokens"
        arguments.add_baseline(parser, "training", of_trainer, metavar="TRAINING")
        for name, text in _SOURCES.items():
            add(f"--{name}", metavar="SOURCE", type=arguments.path, help=text)
        of_both = "fingerprints of the weights of the"
        add("--trainer-fingerprint", metavar="PATH", type=arguments.path, help=f"{of_both} trainer, by step")
        add("--engine-fingerprint", metavar="PATH", type=arguments.path, help=f"{of_both} engine, by step")
        add("--dtype", metavar="NAME", default="", help="dtype in which both sides compute (any up to bfloat16)")
        add("--vocabulary", metavar="N", type=_NUMBER, default=0, help="size of the vocabulary (from ids, or 131072)")
        add("--layers", metavar="N", type=_NUMBER, default=0, help="layers of the model (64): more of them round more")
        add("--tokenizer", metavar="PATH", type=arguments.path, help="tokenizer.json or its folder, for text of tokens")
        add("--tables", action="store_true", help="write a table for each saved value of two folders")
        add("--headers", choices=("msprobe", "english"), default="msprobe", help="headings of --tables")
        add("--rules", choices=("probe", "msprobe"), help="rows of --tables: ours, or those of msProbe 26.2")
        add("-o", "--output_path", metavar="DIR", type=arguments.path, help="write JSON, CSV and a page there")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        arguments.required(args.training, "TRAINING")
        if args.tables:
            from probe.api.rules import rules_for
            from probe.rollout.tables import compare_saved

            output = args.output_path or "./msprobe_compare_output"
            rules = rules_for("saved tables", args.rules)
            tables = compare_saved(args.rollout, args.training, output, rules=rules, headers=args.headers, watch=watch)
            files = [table.file for table in tables.keys]
            return Answer(lambda: [*tables.lines(), *files], tables.as_json, tables.found)
        from probe.api.weights_in_flight import findings_of
        from probe.rollout.check import check
        from probe.rollout.output import as_json, decoder, lines, write

        # Before the work, which would be lost.
        decode = None if args.tokenizer is None else decoder(args.tokenizer)
        names = [name.replace("-", "_") for name in _SOURCES]
        sources = {name: getattr(args, name) for name in ("rollout", "training", *names)}
        proven, remarks = findings_of(args.trainer_fingerprint, args.engine_fingerprint)
        report = check(sources, args.dtype, args.vocabulary, args.layers, proven, remarks)
        written = [] if args.output_path is None else write(report, args.output_path, decode)
        return Answer(
            lambda: [*lines(report, decode), *written],
            lambda: {**as_json(report, decode), "files": written},
            report.found,
        )
