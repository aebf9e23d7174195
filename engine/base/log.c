/* Log lines to stderr; one write a line, so that lines of several threads do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum hx_log_level max_level = HX_LOG_INFO;

void hx_log_set_level(enum hx_log_level level)
{
    max_level = level;
}

enum hx_log_level hx_log_get_level(void)
{
    return max_level;
}

void hx_log(enum hx_log_level level, const char *module, const char *fmt, ...)
{
    if (level > max_level)
        return;
    char line[2048];
    int head = snprintf(line, sizeof(line), "<%d>%s: ", (int)level, module);
    if (head < 0 || (size_t)head >= sizeof(line) - 2)
        return;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    size_t len = strlen(line);
    for (size_t i = (size_t)head; i < len; i++) {
        if ((unsigned char)line[i] < 0x20) /* a log line is one line */
            line[i] = ' ';
    }
    line[len++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, len);
    (void)ignored;
}
