"""Settings that were found to work, one TOML file per environment: [algorithm.preset] and [algorithm.preset.run]."""
