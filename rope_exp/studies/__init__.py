"""Studies: each answers one question from the records of several campaigns.

A study is a module or package here with one function,

    files(asked, records, tables) -> {path below results: content}

where `asked` names the campaigns to report, `records` holds the runs of every campaign, and
`tables` the reports of the asked campaigns by folder ("english", "tokens/train.num_steps=1000").
It may also have `of_group(runs)`, whose files join a table by --factors. `report` calls every study
that it finds, and imports none by name: to remove one, delete it.
"""
