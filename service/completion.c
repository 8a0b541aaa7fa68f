/* SPDX-License-Identifier: Apache-2.0 */
/* Shell completion from the option tables. */
#include "service/cli_docs.h"

#include <string.h>

/* An option whose value is a file's path. */
static bool takes_file(const mr_cli_option *option)
{
    return option->argument != NULL &&
           (strncmp(option->argument, "PATH", 4) == 0 || strncmp(option->argument, "FILE", 4) == 0);
}

static bool takes_setting(const mr_cli_option *option)
{
    return option->argument != NULL && strcmp(option->argument, "KEY=VALUE") == 0;
}

static void print_key(void *ctx, const char *text)
{
    (void)ctx;
    printf("%.*s= ", (int)strcspn(text, "="), text);
}

static void print_names(const mr_cli_catalogue *catalogue)
{
    for (size_t i = 0; i < catalogue->count; i++) {
        printf("%s ", catalogue->entries[i].name);
    }
}

/* A case of the commands' names joined by a blank, as "$command". */
static void print_bash_command(void *ctx, const mr_cli_command *command)
{
    (void)ctx;
    printf("    '%s')\n        options='", command->name);
    for (size_t i = 0; i < command->n_options; i++) {
        printf("--%s ", command->options[i].name);
    }
    fputs("--help'\n        files='", stdout);
    for (size_t i = 0; i < command->n_options; i++) {
        if (takes_file(&command->options[i])) {
            printf("--%s ", command->options[i].name);
        }
    }
    fputs("'\n        values='", stdout);
    for (size_t i = 0; i < command->n_options; i++) {
        if (command->options[i].kind != MR_CLI_FLAG) {
            printf("--%s ", command->options[i].name);
        }
    }
    fputs("'\n        ;;\n", stdout);
}

static void print_bash_parts(const mr_cli_catalogue *catalogue)
{
    for (size_t i = 0; i < catalogue->count; i++) {
        const mr_cli_entry *entry = &catalogue->entries[i];
        if (entry->parts[0] == NULL) {
            continue;
        }
        printf(
            "    %s)\n        if ((COMP_CWORD == 2)); then\n            COMPREPLY=($(compgen -W '",
            entry->name);
        for (size_t p = 0; p < MR_CLI_MAX_PARTS && entry->parts[p] != NULL; p++) {
            printf("%s ", entry->parts[p]);
        }
        fputs("--help' -- \"$cur\"))\n            return\n        fi\n"
              "        command=\"$command ${COMP_WORDS[2]}\"\n        ;;\n",
              stdout);
    }
}

static void print_bash(const mr_cli_catalogue *catalogue)
{
    fputs("# bash completion of millrace: source <(millrace completion bash)\n"
          "_millrace()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]} options= files= values=\n"
          "    COMPREPLY=()\n"
          "    if ((COMP_CWORD == 1)); then\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    print_names(catalogue);
    fputs("--help --version' -- \"$cur\"))\n        return\n    fi\n    case $command in\n",
          stdout);
    print_bash_parts(catalogue);
    fputs("    esac\n    case $command in\n", stdout);
    mr_cli_catalogue_visit(catalogue, print_bash_command, NULL);
    fputs("    esac\n"
          "    if [[ $prev == --set ]]; then\n"
          "        compopt -o nospace 2>/dev/null\n"
          "        COMPREPLY=($(compgen -W '",
          stdout);
    mr_config_describe(print_key, NULL);
    fputs("' -- \"$cur\"))\n"
          "    elif [[ \" $files\" == *\" $prev \"* ]]; then\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
          "    elif [[ \" $values\" == *\" $prev \"* ]]; then\n"
          "        return\n"
          "    elif [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "    else\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
          "    fi\n"
          "}\n"
          "complete -F _millrace millrace\n",
          stdout);
}

/* Text inside a single-quoted zsh word, within brackets or before a colon. */
static void print_zsh_text(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else if (*text == '\n') {
            putchar(' ');
        } else {
            if (strchr("[]:\\", *text) != NULL) {
                putchar('\\');
            }
            putchar(*text);
        }
    }
}

static void print_zsh_command(void *ctx, const mr_cli_command *command)
{
    (void)ctx;
    printf("    '%s')\n        _arguments \\\n", command->name);
    for (size_t i = 0; i < command->n_options; i++) {
        const mr_cli_option *option = &command->options[i];
        printf("            '%s--%s[", option->kind == MR_CLI_TEXTS ? "*" : "", option->name);
        print_zsh_text(option->help);
        putchar(']');
        if (option->argument != NULL) {
            putchar(':');
            print_zsh_text(option->argument);
            putchar(':');
        }
        if (takes_file(option)) {
            fputs("_files", stdout);
        } else if (takes_setting(option)) {
            fputs("($keys)", stdout);
        }
        fputs("' \\\n", stdout);
    }
    printf("            '--help[what it does]'%s\n        ;;\n",
           command->max_operands > 0 ? " '*:file:_files'" : "");
}

static void print_zsh(const mr_cli_catalogue *catalogue)
{
    fputs("#compdef millrace\n"
          "# zsh completion of millrace: save it as _millrace in a folder of $fpath\n"
          "_millrace()\n{\n"
          "    local -a commands keys\n"
          "    commands=(\n",
          stdout);
    for (size_t i = 0; i < catalogue->count; i++) {
        printf("        '%s:", catalogue->entries[i].name);
        print_zsh_text(catalogue->entries[i].about);
        fputs("'\n", stdout);
    }
    fputs("    )\n    keys=(", stdout);
    mr_config_describe(print_key, NULL);
    fputs(")\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $command in\n",
          stdout);
    for (size_t i = 0; i < catalogue->count; i++) {
        const mr_cli_entry *entry = &catalogue->entries[i];
        if (entry->parts[0] == NULL) {
            continue;
        }
        printf("    %s)\n        if ((CURRENT == 2)); then\n            compadd --", entry->name);
        for (size_t p = 0; p < MR_CLI_MAX_PARTS && entry->parts[p] != NULL; p++) {
            printf(" %s", entry->parts[p]);
        }
        fputs("\n            return\n        fi\n        command=\"$command $words[2]\"\n"
              "        shift words\n        ((CURRENT--))\n        ;;\n",
              stdout);
    }
    fputs("    esac\n    case $command in\n", stdout);
    mr_cli_catalogue_visit(catalogue, print_zsh_command, NULL);
    fputs("    esac\n}\n_millrace \"$@\"\n", stdout);
}

mr_status mr_cli_print_completion(const mr_cli_catalogue *catalogue, const char *shell,
                                  mr_error *err)
{
    if (strcmp(shell, "bash") == 0) {
        print_bash(catalogue);
    } else if (strcmp(shell, "zsh") == 0) {
        print_zsh(catalogue);
    } else {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "completion: no completion for %s; there is one for bash and one for zsh",
                       shell);
    }
    return MR_OK;
}
