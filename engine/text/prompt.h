/* Building prompts: client text and template tokens never mix (docs/chat.md, "Prompt to ids"). */
#ifndef HX_TEXT_PROMPT_H
#define HX_TEXT_PROMPT_H

#include <hx/chat.h>

#define HX_PROMPT_MAX ((size_t)512 << 20) /* bytes of prompt text */

#define HX_T_BOS       "<｜begin▁of▁sentence｜>"
#define HX_T_EOS       "<｜end▁of▁sentence｜>"
#define HX_T_PAD       "<｜▁pad▁｜>"
#define HX_T_SYSTEM    "<｜System｜>"
#define HX_T_USER      "<｜User｜>"
#define HX_T_ASSISTANT "<｜Assistant｜>"
#define HX_T_EOT       "<|EOT|>"
#define HX_T_REMINDER  "<｜latest_reminder｜>"
#define HX_T_THINK     "<think>"
#define HX_T_THINK_END "</think>"
#define HX_T_DSML      "｜DSML｜"
#define HX_T_IMAGE     "<｜deepseek_image｜>"

/* Errors are sticky in p->text.failed; hx_prompt_check reads them once. */
void hx_prompt_init(struct hx_prompt *p);
void hx_prompt_text(struct hx_prompt *p, const void *s, size_t len); /* plain */
void hx_prompt_puts(struct hx_prompt *p, const char *s);             /* plain */
void hx_prompt_token(struct hx_prompt *p, const char *spelling);
/* A fixed string of the template: think tags and the DSML marker in it are tokens. */
void hx_prompt_template(struct hx_prompt *p, const char *s);
/* Marks everything appended to p->text since offset `from` (by a JSON writer) as plain text. */
void hx_prompt_plain_since(struct hx_prompt *p, size_t from);
int hx_prompt_check(const struct hx_prompt *p, struct hx_error *err) HX_MUST;

#endif
