#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/pipelines/bagel/memory.h"

namespace diptych {
namespace {

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30);
}

enum class Keep { everything, what_fits, nothing };  // of the experts, on the device

struct Way {
  BagelChoice choice;  // but for `offload`, which follows from `keep`
  Keep keep = Keep::everything;
};

struct Fitter {
  const BagelSizes& sizes;
  const BagelWork& work;
  std::int64_t available;  // bytes for tensors

  bool fits(const BagelMemory& memory) const { return memory.peak() <= available; }
  BagelMemory plan(const Way& way) const {
    BagelChoice choice = way.choice;
    if (way.keep != Keep::everything) choice.offload.emplace();
    const BagelMemory memory = plan_bagel_memory(sizes, work, choice);
    if (way.keep != Keep::what_fits || !fits(memory)) return memory;
    choice.offload = fill_up(*choice.offload, available - memory.peak());
    return plan_bagel_memory(sizes, work, choice);
  }

 private:
  // As many experts on the device as there is room for, first those that text needs too. Where
  // these all stay, two slots do for the others: one in use, one being filled.
  MotOffload fill_up(MotOffload offload, std::int64_t bytes) const {
    const std::int64_t expert = sizes.expert_matrix_bytes();
    const std::int64_t layers = sizes.model.llm.num_hidden_layers;
    const std::int64_t room = bytes / expert + offload.slots;
    if (room - 2 >= layers) offload.slots = 2;
    const std::int64_t resident = std::min(room - offload.slots, 2 * layers);
    offload.resident_und = std::min(resident, layers);
    offload.resident_gen = resident - offload.resident_und;
    return offload;
  }
};

// In the order of what they cost. Where experts are brought to the device guidance stays batched,
// if it can: one branch after the other would bring them once for each.
std::vector<Way> ways_to_try(const BagelMemoryWishes& wishes, const BagelWork& work, bool limited) {
  std::vector<BagelChoice> choices = {
      {wishes.batched.value_or(true), wishes.tiling == TilingWish::on, {}}};
  if (wishes.tiling == TilingWish::automatic) {
    choices.push_back(choices.back());
    choices.back().strips = true;
  }
  const BagelChoice batched = choices.back();
  if (!wishes.batched && work.branches > 1) {
    choices.push_back(batched);
    choices.back().batched = false;
  }
  std::vector<Way> ways;
  const Keep asked = limited ? Keep::what_fits : Keep::nothing;
  const Keep first = wishes.offload == OffloadWish::layers ? asked : Keep::everything;
  for (const BagelChoice& choice : choices) ways.push_back({choice, first});
  if (wishes.offload == OffloadWish::automatic) {
    ways.push_back({batched, Keep::what_fits});
    ways.push_back({choices.back(), Keep::what_fits});
  }
  return ways;
}

void check_host(const BagelMemory& memory, const MemoryBudget& budget) {
  if (!budget.host || memory.host <= *budget.host) return;
  throw InputError(Setting::of("offload", "layers"),
                   "needs {:.1f} GiB of host memory for the layers that are not on the GPU, "
                   "{:.1f} GiB are available; a larger --max-vram keeps more of them there",
                   gib(memory.host), gib(*budget.host));
}

// A flag that saves memory, and what it changes.
struct Saving {
  Setting flag;
  void (*apply)(Way& way);
};
using Savings = std::vector<Saving>;

// "--vae-tiling on --offload layers", behind `text`.
void add_flags(SettingText& text, const Savings& savings) {
  for (const Saving& saving : savings) {
    if (&saving != &savings.front()) text.emplace_back(" ");
    text.emplace_back(saving.flag);
  }
}

Savings savings_left(const Way& way, const BagelWork& work) {
  Savings savings;
  if (!way.choice.strips && (work.width > 0 || work.encode_width > 0)) {
    savings.push_back({Setting::of("vae_tiling", "on"), [](Way& w) { w.choice.strips = true; }});
  }
  if (way.choice.batched && work.branches > 1) {
    savings.push_back(
        {Setting::of("cfg_mode", "sequential"), [](Way& w) { w.choice.batched = false; }});
  }
  if (way.keep == Keep::everything) {
    savings.push_back({Setting::of("offload", "layers"), [](Way& w) { w.keep = Keep::nothing; }});
  }
  return savings;
}

// Every smallest set of savings that is enough: "--vae-tiling on, or with --offload layers".
SettingText enough_flags(const Fitter& fitter, const Way& way) {
  const Savings savings = savings_left(way, fitter.work);
  for (std::size_t size = 1; size <= savings.size(); ++size) {
    SettingText found;
    for (std::size_t set = 1; set < std::size_t{1} << savings.size(); ++set) {
      Way tried = way;
      Savings flags;
      for (std::size_t i = 0; i < savings.size(); ++i) {
        if ((set >> i & 1) == 0) continue;
        savings[i].apply(tried);
        flags.push_back(savings[i]);
      }
      if (flags.size() == size && fitter.fits(fitter.plan(tried))) {
        if (!found.empty()) found.emplace_back(", or with ");
        add_flags(found, flags);
      }
    }
    if (!found.empty()) return found;
  }
  return {};
}

// The largest picture of about the same shape that fits, "WxH"; empty where none does.
std::string smaller_size(const Fitter& fitter, const Way& way) {
  const std::int64_t step = fitter.sizes.model.pixels_per_row();
  BagelWork work = fitter.work;
  const Fitter smaller{fitter.sizes, work, fitter.available};
  for (std::int64_t columns = fitter.work.width / step - 1; columns > 0; --columns) {
    work.width = columns * step;
    work.height =
        std::max(columns * fitter.work.height / fitter.work.width, std::int64_t{1}) * step;
    if (smaller.fits(smaller.plan(way))) return fmt::format("{}x{}", work.width, work.height);
  }
  return {};
}

void add_advice(SettingText& text, const Fitter& fitter, const Way& way) {
  if (const SettingText flags = enough_flags(fitter, way); !flags.empty()) {
    text.emplace_back("it fits with ");
    text.insert(text.end(), flags.begin(), flags.end());
    return;
  }
  const Way least{{false, true, {}}, Keep::nothing};
  if (const std::string size = smaller_size(fitter, least); !size.empty()) {
    text.insert(text.end(), {"it fits with ", Setting::of("size", size), " "});
  } else {
    text.emplace_back(
        fmt::format("it needs {:.1f} GiB even with ", gib(fitter.plan(least).peak() + kCudaBytes)));
  }
  // All that this work can do with.
  add_flags(text, savings_left({{true, false, {}}, Keep::everything}, fitter.work));
}

}  // namespace

void check_offload(OffloadWish wish, const MemoryBudget& budget) {
  if (wish != OffloadWish::layers || budget.device) return;
  throw InputError(Setting::of("offload", "layers"),
                   "the run is on the CPU, where the weights are in host memory anyway; expected "
                   "none or auto");
}

BagelMemory fit_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                             const BagelMemoryWishes& wishes, const MemoryBudget& budget) {
  check_offload(wishes.offload, budget);
  const std::vector<Way> ways = ways_to_try(wishes, work, budget.limited);
  if (!budget.device) return plan_bagel_memory(sizes, work, ways.front().choice);
  const Fitter fitter{sizes, work, *budget.device - kCudaBytes};
  BagelMemory memory;
  for (const Way& way : ways) {
    memory = fitter.plan(way);
    if (fitter.fits(memory)) break;
  }
  if (!fitter.fits(memory)) {
    SettingText text = {fmt::format("this run needs {:.1f} GiB of GPU memory, {:.1f} GiB are {}; ",
                                    gib(memory.peak() + kCudaBytes), gib(*budget.device),
                                    budget.limited ? "allowed" : "free")};
    add_advice(text, fitter, ways.back());
    throw InputError(budget.limited ? Setting::of("max_vram") : Setting::of("device", "cuda"),
                     std::move(text));
  }
  check_host(memory, budget);
  return memory;
}

BagelMemory refit_bagel_memory(const BagelSizes& sizes, const BagelWork& work,
                               const BagelMemoryWishes& wishes, const MemoryBudget& budget,
                               const std::optional<MotOffload>& offload) {
  BagelMemoryWishes rest = wishes;
  rest.offload = OffloadWish::none;
  std::optional<BagelMemory> memory;
  for (const Way& way : ways_to_try(rest, work, budget.limited)) {
    BagelChoice choice = way.choice;
    choice.offload = offload;
    memory = plan_bagel_memory(sizes, work, choice);
    if (!budget.device || memory->peak() + kCudaBytes <= *budget.device) return *memory;
  }
  throw InputError(
      "this request needs {:.1f} GiB of GPU memory, {:.1f} GiB are {}, and the weights "
      "are loaded already; it may fit when it is the first, or alone",
      gib(memory->peak() + kCudaBytes), gib(*budget.device), budget.limited ? "allowed" : "free");
}

}  // namespace diptych
