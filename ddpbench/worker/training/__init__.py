"""The training job of a rank: its data, its model, its step."""
