/* Fibers: threads of a block that hand the processor to each other, with a stack each.
 *
 * A switch saves the callee-saved registers on the stack it leaves and jumps: no system call, and no `ret`, because the
 * return address is never the one that the processor predicted. Elsewhere than on x86-64 ucontext does the same,
 * slower.
 */
#ifndef SIM_FIBER_H
#define SIM_FIBER_H

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#ifndef SIM_ASAN
#define SIM_ASAN 0
#endif

namespace sim
{

struct fiber {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    char *stack; /* lowest usable byte; below it lies a page that may not be touched. NULL: the calling thread's own */
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
};

/* Give `fiber`, the index-th, a stack for good. */
void fiber_create(fiber &fiber, unsigned index);

/* The next switch to `fiber` starts `entry`, which never returns. */
void fiber_start(fiber &fiber, unsigned index, void (*entry)());

/* First thing in an entry. */
void fiber_entered();

/* Make `fiber` stand for the thread that calls. */
void fiber_adopt_thread(fiber &fiber);

/* Leave `from`, which is running, and go on with `to`. Returns when something switches back to `from`; with `ends`,
 * never. */
void fiber_switch(fiber &from, fiber &to, bool ends = false);

} // namespace sim

#endif
