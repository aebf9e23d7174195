# p2p_check: checks, verdict and outputs. The CUDA probe is p2p/probe.
p2p_SRCS := table.c remedies.c measured.c collect.c check_inventory.c check_driver.c check_memory.c check_link.c \
	check_platform.c check_errors.c check_peer.c verdict.c output_json.c output_text.c bench_log.c launch.c key.c
p2p_DEPS := hw base
$(call hx_module,p2p,p2p)
$(call hx_program,p2p_check,p2p/main.c,p2p)
