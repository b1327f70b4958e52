/* What the environment tells the simulation, and how it ends a program that broke a rule.
 *
 * - SIM_SEED=n: which of the permitted orders of threads, blocks and stream work is taken. 0: work runs as soon as it
 *   can, threads in order; 1: threads in reverse order; others are random (2)
 * - SIM_DEVICES=n: how many devices there are (1)
 * - SIM_MEMORY=n: bytes of each device (2 GiB)
 * - SIM_STALL=s: seconds without progress after which a wait for another process is called a hang (300)
 * - SIM_FAIL=name:n:code[,…]: the n-th call (from 1) of this function returns this code and does nothing else
 * - SIM_DROP=name:n: calls of this function from the n-th place that calls it (from 1, in order of first use) do
 * nothing: an event or a wait taken out of the program
 * - SIM_TRACE=path: a line per call is appended to path.PID: its name, then what is known of it (see trace)
 * - SIM_NCCL_SILENT=1: a dead peer is not noticed
 * - SIM_OPEN=1: device memory is not closed to the host; much faster where it is large
 */
#ifndef SIM_SETTINGS_H
#define SIM_SETTINGS_H

#include <cstddef>
#include <cstdint>

namespace sim
{

struct settings {
    uint64_t seed;
    int devices;
    size_t memory;
    int stall_seconds;
    bool nccl_silent, open;
};

const settings &options();

/* A rule of CUDA was broken where the program can still be told by a message: file:line: message, then abort(). */
[[noreturn]] __attribute__((format(printf, 3, 4))) void fatal(const char *file, int line, const char *format, ...);

/* Why a call is about to return an error; one line on standard error. */
__attribute__((format(printf, 1, 2))) void explain(const char *format, ...);

/* The code that SIM_FAIL asks this call of `function` to return; 0: none. */
int injected_failure(const char *function);

/* Whether SIM_DROP takes out the call of `function` that returns to `caller`. */
bool dropped(const char *function, const void *caller);

/* `detail` is one of: the place that calls (+0x…, an offset into its file, as addr2line takes it), "host-sync" where
 * the host waits for a device or CUDA may let it wait, or NULL. */
void trace(const char *function, const char *detail);
void trace_caller(const char *function, const void *caller);

} // namespace sim

#endif
