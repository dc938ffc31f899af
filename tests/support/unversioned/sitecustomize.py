"""On PYTHONPATH, has processes know no commit, as those of an installed copy do.

So a campaign of a test's own leaves records whatever is being edited here meanwhile.
"""

from rope_exp.run import provenance

provenance.git_state = lambda: None
