from support.small_graphs import builders, ocr_model, silero

__all__ = ["builders", "ocr_model", "silero"]
