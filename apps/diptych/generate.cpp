// `diptych generate`: one request, from texts, pictures and clips to files with pictures or clips,
// or an answer.
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/generate_request.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/verbs.h"
#include "lib/config/task.h"

namespace diptych {
namespace {

int generate(const RequestFlags& flags, Log& log) {
  Resolved resolved = resolve_request(flags, log, takes_every_field, resolve_sources);
  const bool checks = flags.check_config && !flags.print_config;
  const bool lacks_prompt = checks && stand_in_for_prompt(resolved);
  settle_task(resolved);
  if (flags.print_config) {
    resolved.options.output = printed_output(resolved);
    fmt::print("{}", config_table(resolved));
    return 0;
  }
  return with_places(resolved, [&] {
    if (checks) return check_request_config(resolved, lacks_prompt, log);
    const Meeting meeting = meet_ranks(resolved, log);
    return as_rank(meeting.ranks, [&] { return generate_request(resolved, meeting.ways, log); });
  });
}

constexpr const char* kFooter =
    "Every flag except --set can also be set by an environment variable: DIPTYCH_CFG_MODE is\n"
    "--cfg-mode. An empty variable counts as unset; ; separates several pictures or filters.\n"
    "A flag wins over a variable, a variable over the stage config, the stage config over the\n"
    "default in [ ]. Without -c and -m the demo runs: 192x192, 25 steps, and edits are planned\n"
    "first (--think=false: no plan). --print-config shows where each value comes from.\n"
    "An existing output file is replaced, and only by a complete picture.\n"
    "Examples:\n"
    "  diptych generate -p \"a red circle left of a blue square\" -o shapes.png\n"
    "  diptych generate -m {model} -p \"a cup of tea\" --size 1024x768 --seed 7 -b 4 -o "
    "tea.png\n"
    "  diptych generate -p \"a red circle\" -o circle.webp --quality 100\n"
    "  diptych generate -p \"a red circle\" -o - --format jpg | diptych inspect -\n"
    "  diptych generate -m {model} -i room.jpg -p \"remove the chair\" -o edited.png\n"
    "  diptych generate -m {model} -i cat.png -i garden.png -p \"put the cat there\" --think\n"
    "  diptych generate -m {model} -p \"a cup of tea\" --cache-mode taylorseer "
    "--cache-report\n"
    "{videos}"
    "  diptych generate -m {model} --task understand -i street.jpg -p \"how many cars?\"\n"
    "  diptych generate -m {text model} --draft-model DRAFTER -p \"count to ten\"\n"
    "  diptych generate -m {model} --task chat -p \"what is a diptych?\" --temperature 0.7\n"
    "  diptych generate -c stage_configs/{family}.yaml -m {model} -p - -o tea-%03d.png -b 2 < "
    "prompt.txt\n"
    "  diptych generate -c my.yaml --set stages.1.default_sampling_params.seed=7 --print-config";

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand(
      "generate", "paint, film, edit or answer, from texts, pictures and videos");
  const auto flags = std::make_shared<RequestFlags>();
  add_request_flags(*verb, *flags);
  verb->add_flag("--check-config", flags->check_config,
                 "check flags, stage config and inputs without loading weights, and stop; without "
                 "a prompt, everything else is checked")
      ->envname("DIPTYCH_CHECK_CONFIG");
  verb->footer(kFooter);
  verb->callback([flags, verb, &run] {
    read_request_inputs(*verb, *flags);
    run = [flags](Log& log) { return generate(*flags, log); };
  });
}

}  // namespace diptych
