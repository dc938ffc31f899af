"""Find the packages of an installation; pyproject.toml has everything else.

configs/ lies at the top of a checkout, and is the package rope_exp.configs where it is installed.
Hydra looks for our launcher in a package of the name hydra_plugins.
"""

from setuptools import find_namespace_packages, setup

ELSEWHERE = {
    "hydra_plugins": "rope_exp/commands/plugin/hydra_plugins",
    "rope_exp.configs": "configs",
}

found = find_namespace_packages(include=["rope_exp*"], exclude=["rope_exp.commands.plugin*"])
setup(packages=[*found, *ELSEWHERE], package_dir=ELSEWHERE)
