text_SRCS := unicode_classes.c pretok.c bpe.c tokenizer.c tokenizer_json.c \
	prompt.c tools.c messages.c template.c effort.c chat_request.c \
	reply.c reply_call.c reply_markers.c reply_args.c reply_out.c
text_DEPS := base
$(call hx_module,text,engine/text)
