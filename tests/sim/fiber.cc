#include "fiber.h"

#include "settings.h"

#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if SIM_ASAN
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
/* sim_fiber_jump(void **save, void *load) */
extern "C" void sim_fiber_jump(void **save, void *load);
asm(R"(
    .text
    .globl sim_fiber_jump
    .hidden sim_fiber_jump
    .type sim_fiber_jump, @function
sim_fiber_jump:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmpq *%rcx
    .size sim_fiber_jump, .-sim_fiber_jump
)");
#endif

namespace sim
{

namespace
{

const size_t stack_bytes = 128 * 1024;

/* The tops of stacks that all begin at the same offset of a page compete for the same cache sets: shift them. */
size_t colour(unsigned index)
{
    return index % 61 * 192;
}

} // namespace

void fiber_create(fiber &fiber, unsigned index)
{
    size_t page = size_t(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, page + stack_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fatal(__FILE__, __LINE__, "no memory for the stack of thread %u", index);
    fiber.stack = static_cast<char *>(memory) + page;
    fiber.stack_bytes = stack_bytes;
    fiber.fake_stack = nullptr;
    if (mprotect(fiber.stack, stack_bytes, PROT_READ | PROT_WRITE) != 0)
        fatal(__FILE__, __LINE__, "no memory for the stack of thread %u", index);
}

void fiber_start(fiber &fiber, unsigned index, void (*entry)())
{
#if SIM_ASAN
    __asan_unpoison_memory_region(fiber.stack, fiber.stack_bytes); // frames that ended by a last switch
    fiber.fake_stack = nullptr;
#endif
#if defined(__x86_64__)
    /* After the pops the stack looks as it does on entry to a function: a (null) return address at 16n + 8. */
    uintptr_t top = (reinterpret_cast<uintptr_t>(fiber.stack) + fiber.stack_bytes - colour(index)) & ~uintptr_t(15);
    void **slot = reinterpret_cast<void **>(top - 8);
    *slot = nullptr;
    *--slot = reinterpret_cast<void *>(entry);
    for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
    fiber.stack_pointer = slot;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = fiber.stack_bytes - colour(index);
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
#endif
}

void fiber_entered()
{
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}

void fiber_adopt_thread(fiber &fiber)
{
#if SIM_ASAN
    pthread_attr_t attributes;
    void *stack;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 ||
        pthread_attr_getstack(&attributes, &stack, &fiber.stack_bytes) != 0)
        fatal(__FILE__, __LINE__, "the thread's stack is unknown");
    pthread_attr_destroy(&attributes);
    fiber.stack = static_cast<char *>(stack);
#else
    fiber.stack = nullptr;
    fiber.stack_bytes = 0;
#endif
    fiber.fake_stack = nullptr;
}

void fiber_switch(fiber &from, fiber &to, bool ends)
{
#if SIM_ASAN
    __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
    (void)ends;
#endif
#if defined(__x86_64__)
    sim_fiber_jump(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.context, &to.context);
#endif
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

} // namespace sim
