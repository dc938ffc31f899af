"""What is asked for: composition by Hydra, campaigns, and what a config costs on a machine."""
