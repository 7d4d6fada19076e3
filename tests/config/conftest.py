from config_kit import node

__all__ = ["node"]
