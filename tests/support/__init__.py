"""What several tests share: models, samples, recipes, and runs of other tools."""
