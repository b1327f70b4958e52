/*
 * Runs a fuzz entry as an ordinary test, with any compiler: every seed file of the directory given, and then a fixed
 * number of its mutations from a fixed random sequence. Real fuzzing: configure with clang and -DGACC_FUZZ=ON.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { SEEDS_MAX = 64, SEED_MAX_BYTES = 1 << 14, MUTATIONS = 20000, CHANGES = 6 };

struct input {
    size_t size;
    uint8_t bytes[SEED_MAX_BYTES];
};

static uint64_t state = 1337;

/* xorshift64* */
static size_t below(size_t count)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (size_t)((state * UINT64_C(2685821657736338717)) >> 16) % count;
}

/* One small damage: a byte, a bit, a piece left out, doubled or taken from another seed. */
static void mutate(struct input *input, const struct input *other)
{
    size_t at = input->size ? below(input->size) : 0, length = 1 + below(16);
    switch (below(6)) {
    case 0:
        if (input->size) input->bytes[at] = (uint8_t)below(256);
        break;
    case 1:
        if (input->size) input->bytes[at] ^= (uint8_t)(1 << below(8));
        break;
    case 2:
        input->size = at;
        break;
    case 3:
        if (at + length > input->size) break;
        memmove(input->bytes + at, input->bytes + at + length, input->size - at - length);
        input->size -= length;
        break;
    case 4:
        if (at + length > input->size || input->size + length > SEED_MAX_BYTES) break;
        memmove(input->bytes + at + length, input->bytes + at, input->size - at);
        input->size += length;
        break;
    default:
        if (at + length <= input->size && length <= other->size)
            memcpy(input->bytes + at, other->bytes + below(other->size - length + 1), length);
    }
}

/* A heap copy of the exact size, so that a sanitizer sees a read beyond it. */
static void run(const struct input *input)
{
    uint8_t *copy = malloc(input->size ? input->size : 1);
    if (!copy) abort();
    memcpy(copy, input->bytes, input->size);
    LLVMFuzzerTestOneInput(copy, input->size);
    free(copy);
}

static size_t read_seeds(const char *path, struct input *seeds)
{
    size_t count = 0;
    DIR *directory = opendir(path);
    if (!directory) return 0;
    for (struct dirent *entry; count < SEEDS_MAX && (entry = readdir(directory));) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(name, "rb");
        if (!file) continue;
        seeds[count].size = fread(seeds[count].bytes, 1, SEED_MAX_BYTES, file);
        fclose(file);
        count++;
    }
    closedir(directory);
    return count;
}

int main(int count, char **arguments)
{
    struct input *seeds = calloc(SEEDS_MAX + 1, sizeof *seeds), *input = malloc(sizeof *input);
    if (!seeds || !input) abort();
    size_t found = count > 1 ? read_seeds(arguments[1], seeds) : 0;
    size_t kinds = found + 1; /* the empty input is one */
    for (size_t i = 0; i < kinds; i++) run(&seeds[i]);
    for (size_t i = 0; i < MUTATIONS; i++) {
        *input = seeds[below(kinds)];
        for (size_t change = 0; change <= below(CHANGES); change++) mutate(input, &seeds[below(kinds)]);
        run(input);
    }
    printf("%zu seeds, %d mutations\n", found, MUTATIONS);
    free(input);
    free(seeds);
    return 0;
}
