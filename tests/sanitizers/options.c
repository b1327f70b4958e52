/*
 * What every program of a build with sanitizers carries (GACC_SANITIZE), so that no process's environment has to: how a
 * report ends it, and which reports are other libraries' own. Nothing of gaccd's may be named here.
 */
#include <dlfcn.h>
#include <stdbool.h>

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__lsan_default_options(void);
const char *__lsan_default_suppressions(void);
const char *__tsan_default_options(void);
const char *__tsan_default_suppressions(void);

/* Open MPI closes its components at the end. They stay, so that what they leave behind can be told from what we do;
 * what the program itself closes is closed. */
int dlclose(void *library)
{
    Dl_info own, caller;
    int (*real)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "dlclose");
    const bool is_ours = dladdr((void *)dlclose, &own) && dladdr(__builtin_return_address(0), &caller) &&
                         own.dli_fbase == caller.dli_fbase;
    return is_ours && real ? real(library) : 0;
}

/* 99 is no exit status of gaccd's. Whole call stacks of allocations: libraries without frame pointers are in many. The
 * disk of tests/fault comes before the runtime (LD_PRELOAD). */
const char *__asan_default_options(void)
{
    return "exitcode=99:fast_unwind_on_malloc=0:detect_stack_use_after_return=1:verify_asan_link_order=0";
}

const char *__ubsan_default_options(void)
{
    return "print_stacktrace=1";
}

const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

/* Open MPI and what it loads. */
const char *__lsan_default_suppressions(void)
{
    return "leak:libmpi.so\n"
           "leak:libopen-rte.so\n"
           "leak:libopen-pal.so\n"
           "leak:libpmix.so\n"
           "leak:libhwloc.so\n"
           "leak:/openmpi/lib/openmpi3/mca_\n"
           "leak:/pmix2/lib/pmix/mca_\n";
}

/* A rank may end at once, whatever its threads do. A process that forked beside a thread of its own could not be looked
 * into, and dies at its next thread: die_after_fork stays on. */
const char *__tsan_default_options(void)
{
    return "exitcode=99:print_suppressions=0:second_deadlock_stack=1:history_size=4:report_thread_leaks=0";
}

/* Libraries that are not compiled for ThreadSanitizer: Open MPI's own progress threads, OpenBLAS, oneDNN and libgomp,
 * whose locks it does not see. */
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libmpi.so\n"
           "called_from_lib:libopen-rte.so\n"
           "called_from_lib:libopen-pal.so\n"
           "called_from_lib:libpmix.so\n"
           "called_from_lib:libevent_core\n"
           "called_from_lib:libevent_pthreads\n"
           "race:libopen-rte.so\n"
           "race:libopen-pal.so\n"
           "race:libpmix.so\n"
           "race:/openmpi3/mca_\n"
           "mutex:/openmpi3/mca_\n"
           "mutex:libmpi.so\n"
           "mutex:libopen-rte.so\n"
           "mutex:libopen-pal.so\n"
           "mutex:libpmix.so\n"
           "deadlock:mca_btl_tcp\n";
}
