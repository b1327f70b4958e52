#include "daemon/ctl/terminal.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Signals and the end of the process know no argument, and there is one terminal. */
static struct termios before;
static volatile sig_atomic_t is_open, resized, asked;

/* ECMA-48 and, for the alternate screen (1049), cursor (25) and automatic wrapping (7), DEC's private modes. */
static const char take[] = "\033[?1049h\033[?25l\033[?7l\033[2J", give[] = "\033[0m\033[2J\033[?7h\033[?25h\033[?1049l";

static void on_resize(int number)
{
    (void)number;
    resized = 1;
}

static void on_signal(int number)
{
    asked = number;
}

static void tell(const char *sequence)
{
    const ssize_t written = write(STDOUT_FILENO, sequence, strlen(sequence));
    (void)written; /* a terminal that is gone needs nothing */
}

void terminal_close(void)
{
    if (!is_open) return;
    is_open = 0;
    tell(give);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
}

int terminal_open(struct error *error)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const char *kind = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !kind || !strcmp(kind, "dumb") ||
        tcgetattr(STDIN_FILENO, &before))
        return error_set(error, STATUS_USAGE, "top: wants a terminal; gaccctl watch and gaccctl status do without");
    struct sigaction act = {.sa_handler = on_resize};
    sigaction(SIGWINCH, &act, NULL);
    act.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) sigaction(ends[i], &act, NULL);
    struct termios raw = before;
    raw.c_iflag &= ~(tcflag_t)(IXON | ICRNL);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped top would leave the terminal as it is */
    atexit(terminal_close);
    is_open = 1;
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    tell(take);
    return 0;
}

void terminal_size(int *columns, int *rows)
{
    struct winsize size;
    const bool is_known = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col && size.ws_row;
    *columns = is_known ? size.ws_col : 80;
    *rows = is_known ? size.ws_row : 24;
}

bool terminal_was_resized(void)
{
    const bool was = resized != 0;
    resized = 0;
    return was;
}

int terminal_signal(void)
{
    return asked;
}

/* The next byte; 0: none just now. */
static int next_byte(void)
{
    unsigned char byte;
    struct pollfd ready = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&ready, 1, 0) <= 0) return 0;
    return read(STDIN_FILENO, &byte, 1) == 1 ? byte : -1;
}

int terminal_key(void)
{
    int key = next_byte();
    while (key == '\033') { /* what follows at once belongs to it: a letter or '[', up to a letter or '~' */
        key = next_byte();
        if (key == '[' || key == 'O')
            while ((key = next_byte()) > 0 && (key < '@' || key > '~')) {
            }
        if (key > 0) key = next_byte();
    }
    return key;
}
