"""How far a gradient may be from the truth when its arithmetic rounds to a narrow type."""
import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import loop

BF16_UNIT, FP16_UNIT = 2.0**-8, 2.0**-11  # half the distance between neighbours in [1, 2)


class Disturbed(TorchDispatchMode):
    """Monte Carlo arithmetic: the result of every operation, forward and backward, is off by the unit, up or down by chance.
    Rounding to a type is off by at most its unit, and what an implementation keeps wider is not off at all: so no correct
    implementation that rounds results to the type is expected to be further from the truth than this."""

    def __init__(self, unit, seed):
        super().__init__()
        self.unit, self.random = unit, numpy.random.default_rng(seed)

    def disturb(self, tensor):
        signs = torch.from_numpy(self.random.choice([-1.0, 1.0], tuple(tensor.shape)))
        return tensor * (1 + self.unit * signs.to(tensor.dtype))

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        given = {x.data_ptr() for x in tree_flatten(arguments)[0] if isinstance(x, torch.Tensor)}

        def off(x):
            fresh = isinstance(x, torch.Tensor) and x.is_floating_point() and x.data_ptr() not in given
            return self.disturb(x) if fresh else x

        return tree_map(off, result)


def first_step(job, data, initial, mode=None):
    """The loss of the first step and the parameters behind it, in fp64."""
    seen, parameters = loop.train(job, data, initial, 1, kind=torch.float64, mode=mode)
    return seen["loss"][0], parameters


def of_first_step(job, data, initial, unit, draws=8):
    """(of the loss, {tensor: of its norm}): the furthest from the truth in a few draws. The parameters are those behind a step of
    SGD with lr 1: their noise is the gradient's."""
    loss, exact = first_step(job, data, initial)
    loss_noise, noise = 0, dict.fromkeys(exact, 0)
    for seed in range(draws):
        found, parameters = first_step(job, data, initial, Disturbed(unit, seed))
        loss_noise = max(loss_noise, abs(found - loss))
        for name, values in parameters.items():
            noise[name] = max(noise[name], numpy.linalg.norm(values - exact[name]))
    return loss_noise, noise
