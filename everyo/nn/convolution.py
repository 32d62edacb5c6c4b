"""Convolution and pooling layers over (batch, height, width, channels); `Conv1D` over sequences."""

from typing import Any

from everyo.core.tensor import Tensor, as_tensor
from everyo.exceptions import EveryOShapeError
from everyo.nn.checks import positive_sizes
from everyo.nn.layers import new_weight, zero_bias
from everyo.nn.module import Module, register_module
from everyo.ops.convolution import conv1d, conv2d, conv_transpose2d
from everyo.ops.pooling import avg_pool2d, max_pool2d
from everyo.ops.windows import Windows, pads_of, pair_of

__all__ = ["AvgPool2D", "Conv1D", "Conv2D", "ConvTranspose2D", "MaxPool2D"]


class _Convolution(Module):
    """What convolution layers share: channels, parameters, and the check of the input."""

    _config: tuple[str, ...] = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "bias",
        "initializer",
    )

    def _begin(
        self, in_channels: int, out_channels: int, groups: int, bias: bool, initializer: str
    ) -> None:
        name = type(self).__name__
        positive_sizes(name, "channel counts", in_channels=in_channels, out_channels=out_channels)
        if groups <= 0 or in_channels % groups or out_channels % groups:
            raise EveryOShapeError(
                f"{name}: groups={groups} must be positive and divide {in_channels} and "
                f"{out_channels} channels"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.use_bias, self.initializer = bool(bias), initializer

    def _parameters(self, shape: tuple[int, ...], seed: Any) -> None:
        self.weight = new_weight(self.initializer, shape, seed)
        if self.use_bias:
            self.bias = zero_bias(self.out_channels)

    def _image(self, x: Any, rank: int) -> Tensor:
        x = as_tensor(x)
        if x.ndim == rank and x.shape[-1] != self.in_channels:
            raise EveryOShapeError(
                f"{type(self).__name__}: the last axis of the input must be {self.in_channels} "
                f"channel(s) (in_channels), got shape {x.shape}"
            )
        return x


@register_module
class Conv2D(_Convolution):
    """Cross-correlation: (N, H, W, in) -> (N, H', W', out); weight (kh, kw, in / groups, out).

    `padding` is "valid", "same", an int, or for each axis an int or (before, after).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        *,
        stride: Any = 1,
        padding: Any = "valid",
        bias: bool = True,
        initializer: str = "he_uniform",
        seed: Any = None,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self._begin(in_channels, out_channels, groups, bias, initializer)
        self.kernel_size = pair_of(kernel_size, "Conv2D", "kernel_size")
        self.stride, self.padding, self.dilation = stride, padding, dilation
        _check_padding("Conv2D", self.kernel_size, stride, padding, dilation)
        self._parameters((*self.kernel_size, in_channels // groups, out_channels), seed)

    def forward(self, x: Any) -> Tensor:
        return conv2d(
            self._image(x, 4),
            self.weight,
            self.bias if self.use_bias else None,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


@register_module
class Conv1D(_Convolution):
    """Cross-correlation of sequences: (N, L, in) -> (N, L', out); weight (k, in / groups, out).

    `padding` is "valid", "same", an int, or (before, after).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: Any = "valid",
        bias: bool = True,
        initializer: str = "he_uniform",
        seed: Any = None,
        dilation: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self._begin(in_channels, out_channels, groups, bias, initializer)
        positive_sizes("Conv1D", "sizes", kernel_size=kernel_size)
        self.kernel_size, self.stride = kernel_size, stride
        self.padding, self.dilation = padding, dilation
        across = padding if isinstance(padding, str) else (0, padding)
        _check_padding("Conv1D", (1, kernel_size), (1, stride), across, (1, dilation))
        self._parameters((kernel_size, in_channels // groups, out_channels), seed)

    def forward(self, x: Any) -> Tensor:
        return conv1d(
            self._image(x, 3),
            self.weight,
            self.bias if self.use_bias else None,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


@register_module
class ConvTranspose2D(_Convolution):
    """The transpose of a convolution: (N, H, W, in) -> (N, H', W', out); weight
    (kh, kw, in, out / groups). "same" gives H' = H * stride."""

    _config = (*_Convolution._config, "output_padding")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        *,
        stride: Any = 1,
        padding: Any = "valid",
        output_padding: Any = 0,
        bias: bool = True,
        initializer: str = "he_uniform",
        seed: Any = None,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self._begin(in_channels, out_channels, groups, bias, initializer)
        self.kernel_size = pair_of(kernel_size, "ConvTranspose2D", "kernel_size")
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.output_padding = output_padding
        _check_padding("ConvTranspose2D", self.kernel_size, stride, padding, dilation)
        self._parameters((*self.kernel_size, in_channels, out_channels // groups), seed)

    def forward(self, x: Any) -> Tensor:
        return conv_transpose2d(
            self._image(x, 4),
            self.weight,
            self.bias if self.use_bias else None,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )


def _check_padding(
    owner: str, window: tuple[int, int], stride: Any, padding: Any, dilation: Any
) -> None:
    """Raise `EveryOShapeError` for a stride, padding or dilation that no image could have."""
    w = Windows(
        window, pair_of(stride, owner, "stride"), dilation=pair_of(dilation, owner, "dilation")
    )
    pads_of(padding, owner, window, w)


class _Pool(Module):
    """What pooling layers share: their arguments."""

    _config = ("pool_size", "stride", "padding")

    def __init__(self, pool_size: Any = 2, *, stride: Any = None, padding: Any = "valid") -> None:
        super().__init__()
        name = type(self).__name__
        self.pool_size = pair_of(pool_size, name, "pool_size")
        self.stride = self.pool_size if stride is None else pair_of(stride, name, "stride")
        self.padding = padding
        _check_padding(name, self.pool_size, self.stride, padding, 1)


@register_module
class MaxPool2D(_Pool):
    """The largest value of each window: (N, H, W, C) -> (N, H', W', C)."""

    def forward(self, x: Any) -> Tensor:
        return max_pool2d(x, self.pool_size, stride=self.stride, padding=self.padding)


@register_module
class AvgPool2D(_Pool):
    """The mean of each window over real cells: (N, H, W, C) -> (N, H', W', C)."""

    def forward(self, x: Any) -> Tensor:
        return avg_pool2d(x, self.pool_size, stride=self.stride, padding=self.padding)
