"""The subcommands of `specmill`, one module each; they import what they need when they run."""
