/* Log lines to stderr with journald's <N> priority prefix. Libraries log at debug only. */
#ifndef HX_BASE_LOG_H
#define HX_BASE_LOG_H

#include <hx/error.h>

enum hx_log_level {
    HX_LOG_ERROR = 3,
    HX_LOG_WARN = 4,
    HX_LOG_NOTICE = 5,
    HX_LOG_INFO = 6,
    HX_LOG_DEBUG = 7
};

void hx_log_set_level(enum hx_log_level level); /* default INFO; not thread-safe, call at start */
enum hx_log_level hx_log_get_level(void);
void hx_log(enum hx_log_level level, const char *module, const char *fmt, ...) HX_PRINTF(3, 4);

#endif
