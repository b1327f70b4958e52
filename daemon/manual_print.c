/* The documents that a table of commands becomes: a man page, bash's completion, markdown. */
#include <ctype.h>
#include <string.h>

#include "daemon/manual.h"

static bool is_row(const struct manual_option *option)
{
    return option && (option->name || option->key);
}

/* A sentence from the table: its first letter as a capital, unless it is a name, and a full stop. */
static void put_sentence(const char *text, void (*put)(int byte, FILE *to), FILE *to)
{
    put(toupper((unsigned char)text[0]), to);
    for (text++; *text; text++) put(*text, to);
    put('.', to);
}

/* ---- man(7) ---- */

static void put_roff(int byte, FILE *to)
{
    if (byte == '\\')
        fputs("\\e", to);
    else if (byte == '-')
        fputs("\\-", to);
    else
        fputc(byte, to);
}

static void roff(const char *text, FILE *to)
{
    if (*text == '.' || *text == '\'') fputs("\\&", to); /* no request */
    for (; *text; text++) {
        put_roff(*text, to);
        if (*text == '\n' && (text[1] == '.' || text[1] == '\'')) fputs("\\&", to);
    }
}

static void roff_text(const char *text, FILE *to)
{
    while (text && *text) {
        const char *end = strstr(text, "\n\n");
        const size_t length = end ? (size_t)(end - text) : strlen(text);
        char paragraph[2048];
        snprintf(paragraph, sizeof paragraph, "%.*s", (int)length, text);
        const bool is_verbatim = paragraph[0] == ' ';
        fputs(is_verbatim ? ".PP\n.nf\n" : ".PP\n", to);
        roff(paragraph, to);
        fputs(is_verbatim ? "\n.fi\n" : "\n", to);
        text += length + (end ? 2 : 0);
    }
}

static void roff_options(const struct manual_option *option, FILE *to)
{
    for (; is_row(option); option++) {
        fputs(".TP\n", to);
        if (!option->name || option->has_letter) fprintf(to, "\\fB\\-%c\\fR%s", option->key, option->name ? ", " : "");
        if (option->name) {
            fputs("\\fB\\-\\-", to);
            roff(option->name, to);
            fputs("\\fR", to);
        }
        if (option->value) {
            fputs(" \\fI", to);
            roff(option->value, to);
            fputs("\\fR", to);
        }
        fputc('\n', to);
        put_sentence(option->help, put_roff, to);
        fputc('\n', to);
    }
}

static void print_man(const struct manual *manual, FILE *to)
{
    char upper[32];
    size_t length = 0;
    for (const char *at = manual->program; *at && length + 1 < sizeof upper; at++)
        upper[length++] = (char)toupper((unsigned char)*at);
    upper[length] = '\0';
    fprintf(to, ".\\\" Made from the program's own table: %s --print man\n", manual->program);
    fprintf(to, ".TH %s 1 \"\" \"gaccd %s\" \"User Commands\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n", upper,
            GACC_VERSION, manual->program, manual->summary, manual->program);
    roff(manual->usage, to);
    fputs("\n.SH COMMANDS\n", to);
    for (const struct manual_command *each = manual->commands; each->name; each++) {
        if (!each->act) continue;
        fprintf(to, ".SS \"%s%s", each->name, each->operand ? " " : "");
        roff(each->operand ? each->operand : "", to);
        fputs("\"\n", to);
        put_sentence(each->help, put_roff, to);
        fputc('\n', to);
        roff_text(each->text, to);
        roff_options(each->options, to);
    }
    if (manual->options) fputs(".SH OPTIONS\n", to);
    roff_options(manual->options, to);
    for (const struct manual_section *each = manual->sections; each->title; each++) {
        fputs(".SH ", to);
        for (const char *at = each->title; *at; at++) fputc(toupper((unsigned char)*at), to);
        fputc('\n', to);
        roff_text(each->text, to);
    }
    fprintf(to, ".SH SEE ALSO\n.BR %s (1)\n", strcmp(manual->program, "gaccd") ? "gaccd" : "gaccctl");
}

/* ---- markdown ---- */

/* In a cell of a table a bar ends the cell. */
static void put_cell(int byte, FILE *to)
{
    if (byte == '|') fputc('\\', to);
    fputc(byte, to);
}

static void markdown_text(const char *text, FILE *to)
{
    if (text) fprintf(to, "\n%s\n", text); /* verbatim paragraphs are indented by four */
}

static void markdown_options(const struct manual_option *option, FILE *to)
{
    if (!is_row(option)) return;
    fputs("\n| option | |\n|---|---|\n", to);
    for (; is_row(option); option++) {
        fputs("| `", to);
        if (!option->name || option->has_letter) fprintf(to, "-%c%s", option->key, option->name ? ", " : "");
        if (option->name) fprintf(to, "--%s", option->name);
        if (option->value) fputc(' ', to);
        for (const char *at = option->value; at && *at; at++) put_cell(*at, to);
        fputs("` | ", to);
        put_sentence(option->help, put_cell, to);
        fputs(" |\n", to);
    }
}

static void put_plain(int byte, FILE *to)
{
    fputc(byte, to);
}

static void print_markdown(const struct manual *manual, FILE *to)
{
    fprintf(to, "# %s\n\nMade from the program's own table: `%s --print markdown`.\n\n", manual->program,
            manual->program);
    put_sentence(manual->summary, put_plain, to);
    fprintf(to, "\n\n    %s %s\n", manual->program, manual->usage);
    markdown_options(manual->options, to);
    for (const struct manual_command *each = manual->commands; each->name; each++) {
        if (!each->act) continue;
        fprintf(to, "\n## %s%s%s\n\n", each->name, each->operand ? " " : "", each->operand ? each->operand : "");
        put_sentence(each->help, put_plain, to);
        fputc('\n', to);
        markdown_text(each->text, to);
        markdown_options(each->options, to);
    }
    for (const struct manual_section *each = manual->sections; each->title; each++) {
        fprintf(to, "\n## %s\n", each->title);
        markdown_text(each->text, to);
    }
}

/* ---- bash ---- */

static void bash_option_words(const struct manual_option *option, FILE *to)
{
    for (; is_row(option); option++) {
        if (option->name) fprintf(to, " --%s", option->name);
        if (!option->name) fprintf(to, " -%c", option->key);
    }
}

/* The command that fills COMPREPLY with what `completion` names. */
static void bash_action(const char *completion, const char *program, FILE *to)
{
    static const struct {
        const char *name, *function;
    } functions[] = {{"file", "files"}, {"directory", "directories"}, {"runs", "runs"}, {"keys", "keys"}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, completion)) {
            fprintf(to, "_%s_%s \"$word\"", program, functions[i].function);
            return;
        }
    fputs("mapfile -t COMPREPLY < <(compgen -W '", to);
    for (; *completion; completion++) fputc(*completion == '|' ? ' ' : *completion, to);
    fputs("' -- \"$word\")", to);
}

/* What completes the values of options: one case for each. A key has one meaning in all commands. */
static void bash_values(const struct manual *manual, const struct manual_option *option, bool *is_done, FILE *to)
{
    for (; is_row(option); option++) {
        if (!option->value || is_done[option->key & 0xff]) continue;
        is_done[option->key & 0xff] = true;
        if (option->name)
            fprintf(to, "    --%s) ", option->name);
        else
            fprintf(to, "    -%c) ", option->key);
        if (option->completion) bash_action(option->completion, manual->program, to);
        fputs(option->completion ? "; return ;;\n" : "return ;;\n", to);
    }
}

/* getopt takes a word for the command when it is neither an option nor the value of one. */
static void bash_valued(const struct manual_option *option, bool *is_done, FILE *to)
{
    for (; is_row(option); option++) {
        if (!option->value || is_done[option->key & 0xff]) continue;
        is_done[option->key & 0xff] = true;
        if (option->name)
            fprintf(to, " --%s ", option->name);
        else
            fprintf(to, " -%c ", option->key);
    }
}

static void print_completion(const struct manual *manual, FILE *to)
{
    const char *name = manual->program;
    bool is_done[256] = {false}, is_named[256] = {false};
    fprintf(to, "# bash completion for %s, made from its own table: %s --print completion\n\n", name, name);
    fprintf(to,
            "_%s_files() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$1\"); }\n"
            "_%s_directories() { compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$1\"); }\n",
            name, name);
    fprintf(to,
            "# directories with a log, and those on the way there\n"
            "_%s_runs() {\n"
            "    local directory\n"
            "    compopt -o filenames\n"
            "    COMPREPLY=()\n"
            "    while IFS= read -r directory; do\n"
            "        compgen -G \"$(printf %%q \"$directory\")/log.jsonl\" > /dev/null ||\n"
            "            compgen -G \"$(printf %%q \"$directory\")/*/log.jsonl\" > /dev/null || continue\n"
            "        COMPREPLY+=(\"$directory\")\n"
            "    done < <(compgen -d -- \"$1\")\n"
            "}\n",
            name);
    fprintf(
        to,
        "# what the job that the words before it name lets be set\n"
        "_%s_keys() {\n"
        "    compopt -o nospace\n"
        "    mapfile -t COMPREPLY < <(compgen -S = -W \"$(\"${target[@]}\" config --live 2> /dev/null)\" -- \"$1\")\n"
        "}\n\n",
        name);
    fprintf(to,
            "_%s() {\n"
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i\n"
            "    local target=(\"${COMP_WORDS[0]}\")\n"
            "    COMPREPLY=()\n"
            "    [[ $word != = && $before != = ]] || return # a value behind key=\n"
            "    case $before in\n",
            name);
    bash_values(manual, manual->options, is_done, to);
    for (const struct manual_command *each = manual->commands; each->name; each++)
        if (each->act) bash_values(manual, each->options, is_done, to);
    fputs("    esac\n"
          "    local valued='",
          to);
    bash_valued(manual->options, is_named, to);
    for (const struct manual_command *each = manual->commands; each->name; each++)
        if (each->act) bash_valued(each->options, is_named, to);
    fputs("'\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        if [[ $valued == *\" ${COMP_WORDS[i]} \"* ]]; then\n"
          "            target+=(\"${COMP_WORDS[i]}\" \"${COMP_WORDS[i+1]}\")\n"
          "            ((i++))\n"
          "        elif [[ ${COMP_WORDS[i]} != -* && -z $command ]]; then\n"
          "            command=${COMP_WORDS[i]}\n"
          "        fi\n"
          "    done\n"
          "    local options='",
          to);
    bash_option_words(manual->options, to);
    fputs("'\n    case $command in\n    '')\n        [[ $word == -* ]] ||", to);
    fputs(" { mapfile -t COMPREPLY < <(compgen -W '", to);
    for (const struct manual_command *each = manual->commands; each->name; each++)
        if (each->act) fprintf(to, "%s%s", each == manual->commands ? "" : " ", each->name);
    fputs("' -- \"$word\")", to);
    if (manual->first_is_meant)
        fputs("; compopt -o filenames; local file; while IFS= read -r file; do COMPREPLY+=(\"$file\"); done < "
              "<(compgen -f -- \"$word\")",
              to);
    fputs("; return; }\n", to);
    if (manual->first_is_meant) {
        fputs("        options+='", to);
        bash_option_words(manual->commands[0].options, to);
        fputs("'\n", to);
    }
    fputs("        ;;\n", to);
    for (const struct manual_command *each = manual->commands; each->name; each++) {
        if (!each->act) continue;
        fprintf(to, "    %s)\n        options+='", each->name);
        bash_option_words(each->options, to);
        fputs("'\n", to);
        if (each->completion) {
            fputs("        [[ $word == -* ]] || { ", to);
            bash_action(each->completion, name, to);
            fputs("; return; }\n", to);
        }
        fputs("        ;;\n", to);
    }
    if (manual->first_is_meant) { /* a word that is no command is an operand of it */
        fputs("    *)\n        options+='", to);
        bash_option_words(manual->commands[0].options, to);
        fputs("'\n        ;;\n", to);
    }
    fprintf(to,
            "    esac\n"
            "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
            "} && complete -F _%s %s\n",
            name, name);
}

bool manual_print(const struct manual *manual, const char *what, FILE *to)
{
    static const struct {
        const char *what;
        void (*print)(const struct manual *, FILE *);
    } kinds[] = {{"man", print_man}, {"completion", print_completion}, {"markdown", print_markdown}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].what, what)) {
            kinds[i].print(manual, to);
            return true;
        }
    return false;
}
