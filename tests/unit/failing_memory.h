/*
 * Makes the n-th allocation fail, or all from the n-th on, and counts those that are not given back. Takes the place of
 * malloc in the whole process, libraries included. Where a sanitizer owns that, it stands before it for the project's
 * own code (tests/CMakeLists.txt: --wrap), and the sanitizer counts what leaks.
 */
#ifndef GACC_TEST_FAILING_MEMORY_H
#define GACC_TEST_FAILING_MEMORY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Volatile: compilers know that malloc and free look at nothing of this program's. */
static volatile struct {
    long countdown;      /* the allocation that fails, from 1; 0: none */
    bool all;            /* and all after it */
    bool failed;         /* one has */
    bool counts;         /* false: nobody's business */
    long balance, taken; /* allocations less frees; allocations */
} failing_memory;

static inline bool memory_fails(void)
{
    if (!failing_memory.counts) return false;
    failing_memory.taken++;
    if (failing_memory.countdown <= 0 || --failing_memory.countdown > 0) return false;
    if (failing_memory.all) failing_memory.countdown = 1;
    return failing_memory.failed = true;
}

static inline void memory_begin(long failing, bool all)
{
    failing_memory.balance = failing_memory.taken = 0;
    failing_memory.countdown = failing;
    failing_memory.all = all;
    failing_memory.failed = false;
    failing_memory.counts = true;
}

/* Everything must have been given back. */
static inline void memory_end(void)
{
    failing_memory.counts = false;
    assert_int_equal(failing_memory.balance, 0);
}

static inline bool memory_has_failed(void)
{
    return failing_memory.failed;
}

#ifdef GACC_WRAPPED_MEMORY

#define OWN(NAME) __wrap_##NAME
#define SYSTEM(NAME) __real_##NAME
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strdup(const char *text);

static inline void *memory_counted(void *memory)
{
    return memory;
}

char *__wrap_strdup(const char *text)
{
    return memory_fails() ? NULL : __real_strdup(text);
}

#else

#define OWN(NAME) NAME
#define SYSTEM(NAME) __libc_##NAME
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static inline void *memory_counted(void *memory)
{
    if (failing_memory.counts && memory != NULL) failing_memory.balance++;
    return memory;
}

void free(void *memory)
{
    if (failing_memory.counts && memory != NULL) failing_memory.balance--;
    __libc_free(memory);
}

#endif

void *OWN(malloc)(size_t size)
{
    return memory_fails() ? NULL : memory_counted(SYSTEM(malloc)(size));
}

void *OWN(calloc)(size_t count, size_t size)
{
    return memory_fails() ? NULL : memory_counted(SYSTEM(calloc)(count, size));
}

void *OWN(realloc)(void *memory, size_t size)
{
    if (memory_fails()) return NULL;
    return memory == NULL ? memory_counted(SYSTEM(realloc)(memory, size)) : SYSTEM(realloc)(memory, size);
}

#endif
