#include "image/term.h"

#include <errno.h>
#include <string.h>

enum { PLAIN, ESCAPE, CHARSET0, CHARSET1, CSI, STRING, STRING_ESCAPE, SKIP_ONE };

#define NOTE "| Note |"

static void erase(struct hx_term *t, int row, int from, int to)
{
    memset(&t->cell[row][from], ' ', (size_t)(to - from));
}

void hx_term_init(struct hx_term *t)
{
    *t = (struct hx_term){0};
    for (int i = 0; i < HX_TERM_ROWS; i++)
        erase(t, i, 0, HX_TERM_COLS);
}

static int bound(int v, int most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

static void go(struct hx_term *t, int row, int col)
{
    t->row = bound(row, HX_TERM_ROWS - 1);
    t->col = bound(col, HX_TERM_COLS - 1);
    t->past_edge = false;
}

static void line_feed(struct hx_term *t)
{
    if (t->row < HX_TERM_ROWS - 1) {
        t->row++;
        return;
    }
    memmove(t->cell[0], t->cell[1], sizeof(t->cell) - sizeof(t->cell[0]));
    erase(t, HX_TERM_ROWS - 1, 0, HX_TERM_COLS);
}

/* Line drawing of the VT100. */
static char drawn(char c)
{
    static const char frames[] = "j+k+l+m+n+q-t|u|v-w-x|a#";
    for (const char *p = frames; *p; p += 2)
        if (*p == c)
            return p[1];
    return c;
}

static void put(struct hx_term *t, char c)
{
    if (t->past_edge) {
        t->col = 0;
        t->past_edge = false;
        line_feed(t);
    }
    t->cell[t->row][t->col] = t->drawing[t->set] ? drawn(c) : c;
    if (t->col < HX_TERM_COLS - 1)
        t->col++;
    else
        t->past_edge = true;
}

/* Number i of the sequence, at least 1. */
static int count(const struct hx_term *t, int i)
{
    return i < t->n_numbers && t->number[i] > 0 ? t->number[i] : 1;
}

static void erase_display(struct hx_term *t)
{
    int how = t->n_numbers ? t->number[0] : 0;
    for (int i = 0; i < HX_TERM_ROWS; i++) {
        if (how == 2 || (how == 0 && i > t->row) || (how == 1 && i < t->row))
            erase(t, i, 0, HX_TERM_COLS);
    }
    if (how == 0)
        erase(t, t->row, t->col, HX_TERM_COLS);
    else if (how == 1)
        erase(t, t->row, 0, t->col + 1);
}

static void erase_line(struct hx_term *t)
{
    int how = t->n_numbers ? t->number[0] : 0;
    erase(t, t->row, how == 0 ? t->col : 0, how == 1 ? t->col + 1 : HX_TERM_COLS);
}

static void delete_signs(struct hx_term *t)
{
    int n = bound(count(t, 0), HX_TERM_COLS - t->col);
    char *at = &t->cell[t->row][t->col];
    memmove(at, at + n, (size_t)(HX_TERM_COLS - t->col - n));
    erase(t, t->row, HX_TERM_COLS - n, HX_TERM_COLS);
}

static void insert_signs(struct hx_term *t)
{
    int n = bound(count(t, 0), HX_TERM_COLS - t->col);
    char *at = &t->cell[t->row][t->col];
    memmove(at + n, at, (size_t)(HX_TERM_COLS - t->col - n));
    erase(t, t->row, t->col, t->col + n);
}

static void control(struct hx_term *t, char end)
{
    if (t->is_private)
        return;
    switch (end) {
    case 'A': go(t, t->row - count(t, 0), t->col); break;
    case 'B': go(t, t->row + count(t, 0), t->col); break;
    case 'C': go(t, t->row, t->col + count(t, 0)); break;
    case 'D': go(t, t->row, t->col - count(t, 0)); break;
    case 'G': go(t, t->row, count(t, 0) - 1); break;
    case 'd': go(t, count(t, 0) - 1, t->col); break;
    case 'H':
    case 'f': go(t, count(t, 0) - 1, count(t, 1) - 1); break;
    case 'J': erase_display(t); break;
    case 'K': erase_line(t); break;
    case 'P': delete_signs(t); break;
    case '@': insert_signs(t); break;
    case 'X': erase(t, t->row, t->col, bound(t->col + count(t, 0), HX_TERM_COLS)); break;
    case 's': t->saved_row = t->row, t->saved_col = t->col; break;
    case 'u': go(t, t->saved_row, t->saved_col); break;
    default: break; /* colours, modes */
    }
}

static void escape(struct hx_term *t, char c)
{
    t->state = PLAIN;
    switch (c) {
    case '[':
        t->state = CSI;
        t->n_numbers = 0;
        t->is_private = false;
        break;
    case '(': t->state = CHARSET0; break;
    case ')': t->state = CHARSET1; break;
    case ']':
    case 'P':
    case 'X':
    case '^':
    case '_': t->state = STRING; break;
    case '#':
    case '%':
    case '*':
    case '+':
    case ' ': t->state = SKIP_ONE; break;
    case '7': t->saved_row = t->row, t->saved_col = t->col; break;
    case '8': go(t, t->saved_row, t->saved_col); break;
    case 'D': line_feed(t); break;
    case 'E':
        t->col = 0;
        line_feed(t);
        break;
    case 'M': go(t, t->row - 1, t->col); break;
    case 'c': hx_term_init(t); break;
    default: break;
    }
}

static void csi(struct hx_term *t, char c)
{
    if (c >= '0' && c <= '9') {
        if (t->n_numbers == 0)
            t->number[t->n_numbers++] = 0;
        int *n = &t->number[t->n_numbers - 1];
        *n = *n < 10000 ? *n * 10 + (c - '0') : *n;
    } else if (c == ';') {
        if (t->n_numbers == 0)
            t->number[t->n_numbers++] = 0;
        if (t->n_numbers < 8)
            t->number[t->n_numbers++] = 0;
    } else if (c >= '<' && c <= '?') {
        t->is_private = true;
    } else if (c >= '@' && c <= '~') {
        t->state = PLAIN;
        control(t, c);
    } else if (c == '!') {
        t->is_private = true; /* soft reset: nothing that is kept here */
    }
}

/* A sign above ASCII: frames as with line drawing, all others as '?'. */
static char ascii_of(unsigned sign)
{
    static const struct {
        unsigned sign;
        char c;
    } rows[] = {
        {0x2500, '-'}, {0x2502, '|'}, {0x250c, '+'}, {0x2510, '+'}, {0x2514, '+'}, {0x2518, '+'},
        {0x251c, '|'}, {0x2524, '|'}, {0x252c, '-'}, {0x2534, '-'}, {0x253c, '+'}, {0x2592, '#'},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].sign == sign)
            return rows[i].c;
    return '?';
}

/* One byte of UTF-8. */
static void wide(struct hx_term *t, unsigned char c)
{
    if (c >= 0xc0) {
        t->wide_left = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        t->wide_sign = c & (0x3fu >> t->wide_left);
    } else if (t->wide_left > 0) {
        t->wide_sign = t->wide_sign << 6 | (c & 0x3fu);
        if (--t->wide_left == 0)
            put(t, ascii_of(t->wide_sign));
    }
}

static void plain(struct hx_term *t, char c)
{
    if ((unsigned char)c >= 0x80) {
        wide(t, (unsigned char)c);
        return;
    }
    t->wide_left = 0;
    switch (c) {
    case '\x1b': t->state = ESCAPE; break;
    case '\r': go(t, t->row, 0); break;
    case '\n':
        t->past_edge = false;
        line_feed(t);
        break;
    case '\b': go(t, t->row, t->col - 1); break;
    case '\t': go(t, t->row, (t->col / 8 + 1) * 8); break;
    case '\x0e': t->set = 1; break;
    case '\x0f': t->set = 0; break;
    default:
        if (c >= 0x20 && c != '\x7f')
            put(t, c);
    }
}

void hx_term_feed(struct hx_term *t, const void *bytes, size_t n)
{
    const char *p = bytes;
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        switch (t->state) {
        case PLAIN: plain(t, c); break;
        case ESCAPE: escape(t, c); break;
        case CHARSET0:
        case CHARSET1:
            t->drawing[t->state == CHARSET1] = c == '0';
            t->state = PLAIN;
            break;
        case CSI: csi(t, c); break;
        case STRING: t->state = c == '\x1b' ? STRING_ESCAPE : c == '\a' ? PLAIN : STRING; break;
        case STRING_ESCAPE: t->state = c == '\\' ? PLAIN : STRING; break;
        default: t->state = PLAIN;
        }
    }
}

int hx_term_picture(const struct hx_term *t, struct hx_buf *out)
{
    hx_buf_clear(out);
    for (int i = 0; i < HX_TERM_ROWS; i++) {
        int n = HX_TERM_COLS;
        while (n > 0 && t->cell[i][n - 1] == ' ')
            n--;
        hx_buf_append(out, t->cell[i], (size_t)n);
        hx_buf_putc(out, '\n');
    }
    return out->failed ? -ENOMEM : 0;
}

/* Columns of the note; false: there is none. */
static bool find_note(const struct hx_term *t, int *left, int *right)
{
    for (int i = 0; i < HX_TERM_ROWS; i++) {
        const char *at = memmem(t->cell[i], HX_TERM_COLS, NOTE, strlen(NOTE));
        if (!at)
            continue;
        *left = *right = (int)(at - t->cell[i]);
        while (*left > 0 && t->cell[i][*left] != '+')
            --*left;
        while (*right < HX_TERM_COLS - 1 && t->cell[i][*right] != '+')
            ++*right;
        return true;
    }
    return false;
}

bool hx_term_has_note(const struct hx_term *t)
{
    int left, right;
    return find_note(t, &left, &right);
}

int hx_term_words(const struct hx_term *t, struct hx_buf *out)
{
    int left = 0, right = HX_TERM_COLS - 1;
    bool gap = false;
    find_note(t, &left, &right);
    hx_buf_clear(out);
    for (int i = 0; i < HX_TERM_ROWS; i++) {
        for (int k = left; k <= right; k++) {
            char c = t->cell[i][k];
            if (c == ' ' || c == '|' || c == '+') {
                gap = true;
                continue;
            }
            if (gap && out->len)
                hx_buf_putc(out, ' ');
            gap = false;
            hx_buf_putc(out, (uint8_t)c);
        }
        gap = true;
    }
    return out->failed ? -ENOMEM : 0;
}
