/*
 * The terminal, taken over and given back: keys come one by one and unseen, the screen is the alternate one. It is
 * given back on every way out of the program, signals included.
 */
#ifndef GACC_CTL_TERMINAL_H
#define GACC_CTL_TERMINAL_H

#include <stdbool.h>

#include "proto/error.h"

/* 64 when standard input or output is no terminal that can move its cursor. */
int terminal_open(struct error *error);
void terminal_close(void); /* may be called again */
void terminal_size(int *columns, int *rows);
/* Whether the size may have changed since the last call. */
bool terminal_was_resized(void);
/* The signal that asks for the end (INT, TERM, HUP, QUIT); 0: none. */
int terminal_signal(void);
/* The next key that was pressed; 0: none; −1: nobody can press one any more. What cursor and function keys send is left
 * out. */
int terminal_key(void);

#endif
