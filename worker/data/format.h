/*
 * Private to worker/data/: what a kind of data set (tokens.c, csv.c) gives to data.c, and how all of them read files.
 *
 * Files are read with pread and never through a mapping: a mapped file that another process truncates kills the reader
 * with SIGBUS, and a job must end with an error that names the file instead. The pages come from the same cache either
 * way.
 */
#ifndef GACC_DATA_FORMAT_H
#define GACC_DATA_FORMAT_H

#include <stdbool.h>
#include <sys/types.h>

#include "worker/data/data.h"

struct ids {
    const uint32_t *values;
    size_t count;
};
static inline bool ids_have(const struct ids *ids, uint32_t value)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->values[i] == value) return true;
    return false;
}

/* Which files make the part, and which end of them. */
struct part {
    char *const *paths;
    char *const *labels; /* of idx: the numbers y of each file, [labels_count] */
    char *const *masks;  /* [masks_count]: of each file, or none */
    size_t count, labels_count, masks_count;
    struct ids masked, ends; /* targets that weigh nothing; tokens behind which the target weighs nothing */
    double fraction;         /* of the whole list, cut from its end for validation; 0: no cut */
    bool end;                /* the part is what was cut off, not what is left */
};

/* The half-open range of 0…count−1 that belongs to the part. The cut lies at ⌊count·(1−fraction)⌋ (as nanoGPT's
 * int(n·0.9)); 1e-6 absorbs the rounding of 1−fraction. */
static inline void part_range(const struct part *part, uint64_t count, uint64_t *begin, uint64_t *end)
{
    uint64_t cut = part->fraction > 0 ? (uint64_t)((double)count * (1 - part->fraction) + 1e-6) : count;
    *begin = part->end ? cut : 0;
    *end = part->end ? count : cut;
}

/* First member of every kind's own struct. */
struct data {
    const struct data_class *class;
    struct data_shape shape;
    uint64_t sequences;
    uint64_t kept; /* of the first epoch, in every one; 0: all */
    size_t files;
    uint64_t *first; /* [files + 1] the first sequence of each file of the part, at the end the number of all */
    Gacc__V1__Order order;
    uint64_t *slots; /* [files + 1] of a mixture: where each file's part of an epoch begins; NULL: no mixture */
};

/* Room for the firsts of so many files. */
int data_reserve(struct data *data, size_t files, struct error *error);
/* From the rows of each file, [files] in `first`, and the end of all: the sequences of the part and of its files, a
 * sequence being a row. Returns the first row of the part; there may be none. */
uint64_t data_lay_rows(struct data *data, const struct part *part, uint64_t rows);
/* The file in which a sequence lies. */
size_t data_file_of(const struct data *data, uint64_t sequence);

/* As model.loss wasserstein has it. */
static inline bool is_critics(double y)
{
    return y == -1 || y == 0 || y == 1;
}

struct data_class {
    bool tokens; /* feeds language models; else the others */
    int (*open)(struct data **out, Gacc__V1__DataFormat format, const struct part *part, const struct data_shape *shape,
                struct error *error);
    double (*weight)(const struct data *, uint64_t sequence);
    int32_t (*label)(const struct data *, uint64_t sequence); /* of rows with classes; −1: masked */
    /* Fills row batch->rows; data.c does what is common to all. */
    int (*read)(struct data *, uint64_t sequence, struct micro_batch *batch, struct error *error);
    void (*locate)(const struct data *, uint64_t sequence, const char **file, uint64_t *offset_bytes);
    void (*close)(struct data *);
};
extern const struct data_class token_class, csv_class, idx_class;

const char *data_format_name(Gacc__V1__DataFormat format);

/* A regular file as it was when it was first opened. */
struct file {
    const char *path; /* NULL: never opened */
    int descriptor;   /* −1: closed */
    uint64_t size;    /* bytes */
    dev_t device;
    ino_t inode;
};
int file_open(struct file *file, const char *path, struct error *error);
/* Opens it once more after file_close; refused when it is no longer the same file. */
int file_reopen(struct file *file, struct error *error);
void file_close(struct file *file);
/* Exactly `bytes` bytes from `offset`, or an error that names the file and the place. */
int file_read(const struct file *file, uint64_t offset, size_t bytes, void *to, struct error *error);
/* 65 for a file that a usual program has packed, by its first bytes, with the program that unpacks it. */
int file_check_unpacked(const struct file *file, struct error *error);
/* Where data begin at or after `offset`: past a hole of a sparse file, whose bytes are zeros; the size when there are
 * none. */
uint64_t file_next_data(const struct file *file, uint64_t offset);

/* Files held open at a time; more are closed and opened again in turn, so that a corpus of many files needs few
 * descriptors. */
enum { OPEN_FILES = 64 };
struct open_files {
    struct file *opened[OPEN_FILES]; /* a ring */
    size_t next;                     /* slot that gives way next */
};
/* Opens `file` when it is closed, for the first time by `path`; the one that has been open longest makes room. The
 * file keeps its address. */
int file_hold(struct open_files *held, struct file *file, const char *path, struct error *error);

/* Files of masks: a byte for each token or row, 0: masked, 1: not. `count` of them from `first`; others are refused. */
int mask_read(const struct file *file, uint64_t first, size_t count, unsigned char *to, struct error *error);
/* That it has a byte for each of the `count` tokens or rows of `of`. */
int mask_check_size(const struct file *file, uint64_t count, const char *of, struct error *error);

/* llm.c's token files: 256 int32 of header, then the tokens. */
enum { LLMC_HEADER_BYTES = 1024 };
int llmc_identify(const struct file *file, unsigned *width, uint64_t *tokens, struct error *error);
bool llmc_magic(uint32_t magic);

/* idx files, the format of MNIST: two zero bytes, a type, the number of dimensions, their sizes, the numbers, all
 * big-endian. */
enum { IDX_DIMENSIONS = 8 };
struct idx_header {
    unsigned type, width;          /* of a number: its code, its bytes */
    unsigned dimensions;           /* 1…IDX_DIMENSIONS */
    uint32_t size[IDX_DIMENSIONS]; /* the first one is that of rows */
    uint64_t rows, columns;        /* columns: the product of the other sizes */
    uint64_t begin;                /* bytes before the first number */
};
/* Also that the file is as long as its header says, and holds a row and a column. */
int idx_identify(const struct file *file, struct idx_header *header, struct error *error);
const char *idx_type_name(const struct idx_header *header);
bool idx_is_whole(const struct idx_header *header); /* whole numbers */
/* `count` numbers as they stand in the file; scaled: bytes are divided by 255. */
void idx_decode(const struct idx_header *header, const unsigned char *bytes, size_t count, bool scaled, double *to);

#endif
