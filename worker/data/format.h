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

/* Which files make the part, and which end of them. */
struct part {
    char *const *paths;
    char *const *labels; /* of idx: the numbers y of each file, [labels_count] */
    size_t count, labels_count;
    double fraction; /* of the whole list, cut from its end for validation; 0: no cut */
    bool end;        /* the part is what was cut off, not what is left */
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
};

struct data_class {
    bool tokens; /* feeds language models; else the others */
    int (*open)(struct data **out, Gacc__V1__DataFormat format, const struct part *part, const struct data_shape *shape,
                struct error *error);
    double (*weight)(const struct data *, uint64_t sequence);
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
