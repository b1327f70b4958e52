#include "daemon/manual.h"

#include <string.h>

#include "daemon/slip.h"

/* ---- finding ---- */

static bool is_row(const struct manual_option *option)
{
    return option && (option->name || option->key);
}

static void add(struct manual_getopt *out, size_t *count, const struct manual_option *options)
{
    for (; is_row(options); options++) {
        bool is_there = false;
        for (size_t i = 0; i < *count; i++) is_there |= out->options[i].val == options->key;
        if (options->name && !is_there && *count < MANUAL_OPTIONS_MAX)
            out->options[(*count)++] =
                (struct option){options->name, options->value ? required_argument : no_argument, NULL, options->key};
        const size_t length = strlen(out->letters);
        if ((!options->name || options->has_letter) && !strchr(out->letters, options->key) &&
            length + 3 <= sizeof out->letters) {
            out->letters[length] = (char)options->key;
            if (options->value) out->letters[length + 1] = ':';
        }
    }
}

void manual_getopt(const struct manual *manual, const struct manual_command *command, struct manual_getopt *out)
{
    size_t count = 0;
    *out = (struct manual_getopt){.letters = ":"};
    add(out, &count, manual->options);
    if (command) add(out, &count, command->options);
    for (const struct manual_command *each = manual->commands; !command && each->name; each++)
        add(out, &count, each->options);
}

const struct manual_command *manual_find(const struct manual *manual, const char *name)
{
    for (const struct manual_command *each = manual->commands; each->name; each++)
        if (!strcmp(each->name, name)) return each;
    return NULL;
}

bool manual_has_option(const struct manual *manual, const struct manual_command *command, int key)
{
    for (const struct manual_option *each = command ? command->options : manual->options; is_row(each); each++)
        if (each->key == key) return true;
    return false;
}

int manual_no_command(const struct manual *manual, const char *name, struct error *error)
{
    struct nearest nearest = {.wrong = name};
    for (const struct manual_command *each = manual->commands; each->name; each++)
        if (each->act) nearest_try(&nearest, each->name);
    return error_set(error, STATUS_USAGE, "%s: no such command%s%s%s", name, nearest.word ? "; did you mean " : "",
                     nearest.word ? nearest.word : "", nearest.word ? "?" : "");
}

/* ---- --help ---- */

#define HELP_WIDTH 100

/* Columns of UTF-8 text without wide characters. */
static int columns(const char *text)
{
    int count = 0;
    for (; *text; text++) count += ((unsigned char)*text & 0xc0) != 0x80;
    return count;
}

/* Words in lines up to HELP_WIDTH, the first of which has got to `column`; the others begin at `indent`. */
static void wrap(const char *text, int indent, int column, FILE *to)
{
    bool is_first = true;
    while (*text) {
        char word[256];
        const size_t length = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        if (!is_first && column + 1 + columns(word) > HELP_WIDTH) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
            is_first = true;
        }
        column += fprintf(to, "%s", is_first ? "" : " ") + columns(word);
        fputs(word, to);
        is_first = false;
        text += length + strspn(text + length, " ");
    }
    fputc('\n', to);
}

/* The next paragraph of a text, without the empty line behind it; false: there is none. */
static bool next_paragraph(const char **text, char *paragraph, size_t capacity)
{
    if (!*text || !**text) return false;
    const char *end = strstr(*text, "\n\n");
    const size_t length = end ? (size_t)(end - *text) : strlen(*text);
    snprintf(paragraph, capacity, "%.*s", (int)length, *text);
    *text += length + (end ? 2 : 0);
    return true;
}

static void help_text(const char *text, int indent, FILE *to)
{
    char paragraph[2048];
    while (next_paragraph(&text, paragraph, sizeof paragraph)) {
        fputc('\n', to);
        if (paragraph[0] == ' ') {
            fprintf(to, "%s\n", paragraph);
            continue;
        }
        fprintf(to, "%*s", indent, "");
        wrap(paragraph, indent, indent, to);
    }
}

/* "--run DIR", "-h, --help", "-n N" */
static const char *option_words(const struct manual_option *option, char *words, size_t capacity)
{
    char letter[8] = "";
    if (!option->name || option->has_letter) snprintf(letter, sizeof letter, "-%c", option->key);
    snprintf(words, capacity, "%s%s%s%s%s%s", letter, letter[0] && option->name ? ", " : "", option->name ? "--" : "",
             option->name ? option->name : "", option->value ? " " : "", option->value ? option->value : "");
    return words;
}

static void help_options(const struct manual_option *option, FILE *to)
{
    for (char words[64]; is_row(option); option++) {
        option_words(option, words, sizeof words);
        fprintf(to, "  %s%*s", words, columns(words) < 21 ? 21 - columns(words) : 1, "");
        wrap(option->help, 23, columns(words) < 21 ? 23 : columns(words) + 3, to);
    }
}

static void help_command(const struct manual *manual, const struct manual_command *command, FILE *to)
{
    char words[64];
    fprintf(to, "%s %s%s%s", manual->program, command->name, command->operand ? " " : "",
            command->operand ? command->operand : "");
    for (const struct manual_option *option = command->options; is_row(option); option++)
        fprintf(to, " [%s]", option_words(option, words, sizeof words));
    fprintf(to, "\n\n  ");
    wrap(command->help, 2, 2, to);
    help_text(command->text, 2, to);
    if (command->options) fputc('\n', to);
    help_options(command->options, to);
    if (manual->options) fputc('\n', to);
    help_options(manual->options, to);
}

void manual_help(const struct manual *manual, const struct manual_command *command, FILE *to)
{
    if (command) {
        help_command(manual, command, to);
        return;
    }
    fprintf(to, "%s %s: %s\n\n  %s %s\n\n", manual->program, GACC_VERSION, manual->summary, manual->program,
            manual->usage);
    for (const struct manual_command *each = manual->commands; each->name; each++) {
        char words[64];
        if (!each->act) continue;
        snprintf(words, sizeof words, "%s%s%s", each->name, each->operand ? " " : "",
                 each->operand ? each->operand : "");
        fprintf(to, "  %s%*s", words, columns(words) < 21 ? 21 - columns(words) : 1, "");
        wrap(each->help, 23, columns(words) < 21 ? 23 : columns(words) + 3, to);
    }
    fprintf(to, "\n  %s COMMAND --help says more.\n", manual->program);
    if (manual->options) fputc('\n', to);
    help_options(manual->options, to);
}
