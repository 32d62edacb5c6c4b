"""`Sequential`: modules that run one after the other."""

from collections.abc import Iterator, Mapping
from typing import Any

from everyo.nn.module import Module, get_module_class, register_module

__all__ = ["Sequential"]


@register_module
class Sequential(Module):
    """The composition of layers; each gets the result of the one before. Children are named by
    position: "0", "1", ….

    Raises `TypeError` for anything that is not a `Module`.
    """

    def __init__(self, *layers: Module) -> None:
        super().__init__()
        for position, layer in enumerate(layers):
            setattr(self, str(position), _checked(layer))

    def append(self, layer: Module) -> "Sequential":
        """Add a layer at the end. Returns the container."""
        setattr(self, str(len(self)), _checked(layer))
        return self

    @property
    def layers(self) -> list[Module]:
        """The layers in order."""
        return self.children()

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, index: int | slice) -> Module:
        chosen = self.layers[index]
        return Sequential(*chosen) if isinstance(chosen, list) else chosen

    def __setitem__(self, index: int, layer: Module) -> None:
        setattr(self, str(range(len(self))[index]), _checked(layer))

    def get_config(self) -> dict[str, Any]:
        return {
            "layers": [
                {"class_name": type(layer).__name__, "config": layer.get_config()}
                for layer in self.layers
            ]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Sequential":
        return cls(
            *(get_module_class(c["class_name"]).from_config(c["config"]) for c in config["layers"])
        )


def _checked(layer: Any) -> Module:
    if not isinstance(layer, Module):
        raise TypeError(f"Sequential takes Module instances, got {type(layer).__name__}")
    return layer
