"""model.type linear in numpy, operation by operation as gaccd's CPU kernels: with one row a micro-batch, and rows in which one
input is not 0, there is no sum whose order could differ, and all bits agree."""
import math
import sys

import numpy

from gacc.v1 import job_pb2
from worker import JOB, Failed, Rank, Rows, initial_values


class Linear:
    targets = 1

    def __init__(self, job, cores):
        kinds = {job_pb2.COMPUTE_FP32: numpy.float32, job_pb2.COMPUTE_FP64: numpy.float64}
        if job.model.type != job_pb2.MODEL_LINEAR or job.precision.compute not in kinds or job.optimizer.groups:
            raise Failed(JOB, "linear_worker.py runs model.type linear in fp32 or fp64, without optimizer.groups")
        self.job, self.wide = job, kinds[job.precision.compute]
        self.compute = self.wide
        self.inputs = job.model.inputs
        self.names = [("weight", (1, self.inputs))] + ([("bias", (1,))] if job.model.bias else [])
        self.gradients = numpy.zeros(self.inputs + job.model.bias, self.wide)
        self.rows = Rows(job.data.train)
        self.held_out = Rows(job.data.validation)
        self.sequences, self.validation_sequences = len(self.rows), len(self.held_out)

    def weight_of(self, sequence):
        return self.rows.weight[sequence]

    def initial(self):
        return initial_values(self.job, self.names, self.wide)

    def moments(self, count):
        adamw = self.job.optimizer.type == job_pb2.OPTIMIZER_ADAMW
        kept = "mv" if adamw else "m" if self.job.optimizer.momentum else ""
        return {letter: numpy.zeros(count, self.wide) for letter in kept}

    def take(self, parameters):
        self.parameters = parameters

    def errors(self, rows, sequences):
        """ŷ − y, in double, of the rows that have a weight; and their inputs."""
        x = numpy.array([rows.x[i] if rows.weight[i] else [0] * self.inputs for i in sequences], self.wide)
        predicted = x @ self.parameters[:self.inputs]
        if self.job.model.bias:
            predicted += self.parameters[self.inputs]
        return [float(value) - rows.y[i][0] for value, i in zip(predicted, sequences)], x

    def loss_sum(self, rows, sequences, errors):
        factor = 0.5 if self.job.model.loss == job_pb2.LOSS_HALF_MSE else 1.0
        return sum((rows.weight[i] * factor * (error * error) for i, error in zip(sequences, errors) if rows.weight[i]), 0.0)

    def run(self, sequences, seeds, step):
        errors, x = self.errors(self.rows, sequences)
        factor = 1.0 if self.job.model.loss == job_pb2.LOSS_HALF_MSE else 2.0
        slopes = numpy.array([error * (factor * float(self.wide(seed))) for error, seed in zip(errors, seeds)], self.wide)
        self.gradients[:self.inputs] += slopes @ x
        if self.job.model.bias:
            self.gradients[self.inputs] += slopes.sum(dtype=self.wide)
        return self.loss_sum(self.rows, sequences, errors)

    def evaluate(self, sequences):
        errors, _ = self.errors(self.held_out, sequences)
        return self.loss_sum(self.held_out, sequences, errors), sum(self.held_out.weight[i] for i in sequences)

    def update(self, begin, w, gradient, moments, unscale, lr, t):
        """The matrix decays, the bias does not."""
        spec, real = self.job.optimizer, self.wide
        decay = numpy.where(numpy.arange(begin, begin + len(w)) < self.inputs, spec.weight_decay, 0.0)
        g = (gradient.astype(numpy.float64) * unscale).astype(real)
        if spec.type == job_pb2.OPTIMIZER_ADAMW:
            m, v = moments["m"], moments["v"]
            step = real(lr / (1 - math.pow(spec.beta1, t)))
            correction = real(1 / math.sqrt(1 - math.pow(spec.beta2, t)))
            decayed = w - (lr * decay).astype(real) * w
            m[:] = real(spec.beta1) * m + real(1 - spec.beta1) * g
            v[:] = real(spec.beta2) * v + real(1 - spec.beta2) * g * g
            w[:] = decayed - step * m / (numpy.sqrt(v) * correction + real(spec.eps))
            return
        g += decay.astype(real) * w
        if spec.momentum:
            moments["m"][:] = g if t == 1 else real(spec.momentum) * moments["m"] + g
            g = moments["m"]
        w -= real(lr) * g


if __name__ == "__main__":
    sys.exit(Rank(Linear).main())
