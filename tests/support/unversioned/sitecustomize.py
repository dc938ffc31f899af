"""Hide the commit from processes with this folder on PYTHONPATH, as in an installed copy.

A campaign refuses a checkout with uncommitted changes, but its tests must run in one.
"""

from rope_exp import machine

machine.git_state = lambda config_dir=None: None
