// Which attention backend serves a role of a stage.
#include "lib/session/make_runtime.h"

#include "tests/support/folder.h"

namespace diptych {
namespace {

using test::message_of;

constexpr std::array kBoth = {AttentionRole::self, AttentionRole::cross};

RunConfig on_cpu() {
  RunConfig config;
  config.device = {DeviceChoice::Kind::cpu};
  return config;
}

std::string_view name(const StageBackends& stage, AttentionRole role) {
  return stage.of(role).name();
}

TEST_CASE("self-attention is the role's backend, else the stage's default") {
  Log quiet(LogLevel::quiet);
  RunConfig config = on_cpu();
  config.read_attention.default_backend = "math";
  config.paint_attention = {"math", "sdpa"};
  const Runtime runtime = make_runtime(config, quiet);
  CHECK(name(runtime.read_attention, AttentionRole::self) == "math");
  CHECK(name(runtime.paint_attention, AttentionRole::self) == "sdpa");
  CHECK(runtime.ranks == nullptr);
  // A model without cross-attention has no backend for it.
  CHECK_THROWS_AS(runtime.paint_attention.of(AttentionRole::cross), c10::Error);
}

TEST_CASE("cross-attention is the stage's default, for a model that asks for it") {
  Log quiet(LogLevel::quiet);
  RunConfig config = on_cpu();
  config.read_attention.default_backend = "math";
  config.paint_attention = {"math", "sdpa"};
  const Runtime runtime = make_runtime(config, quiet, kBoth);
  CHECK(name(runtime.paint_attention, AttentionRole::self) == "sdpa");
  CHECK(name(runtime.paint_attention, AttentionRole::cross) == "math");
  // Roles of one name share a backend.
  CHECK(&runtime.read_attention.of(AttentionRole::self) ==
        &runtime.read_attention.of(AttentionRole::cross));
}

TEST_CASE("auto is bfloat16 on a CPU that multiplies it, for large weights that are stored so") {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  Log quiet(LogLevel::quiet);
  RunConfig config = on_cpu();
  const auto is_bfloat16 = [&](StoredWeights stored) {
    return make_runtime(config, quiet, kSelfAttention, [&] { return stored; }).dtype ==
           at::kBFloat16;
  };
  CHECK(is_bfloat16({kGib, true}) == cpu_multiplies_bfloat16());
  CHECK_FALSE(is_bfloat16({kGib - 1, true}));
  CHECK_FALSE(is_bfloat16({29 * kGib, false}));
  CHECK((make_runtime(config, quiet).dtype == at::kFloat));  // nothing is stored
  config.dtype = DtypeChoice::float32;
  CHECK_FALSE(is_bfloat16({29 * kGib, true}));
  config.dtype = DtypeChoice::bfloat16;
  CHECK(is_bfloat16({1, false}));
}

TEST_CASE("a default that no role takes need not be there") {
  Log quiet(LogLevel::quiet);
  RunConfig config = on_cpu();
  config.paint_attention = {"flash", "math"};
  CHECK(message_of([&] { make_runtime(config, quiet); }) == "no error");
  CHECK(message_of([&] { make_runtime(config, quiet, kBoth); }) ==
        "--attention: attention backend flash: needs a CUDA device, not cpu");
}

}  // namespace
}  // namespace diptych
