// The decoder whose step is a CUDA graph, launched a chunk of tokens ahead of the host.
#include <doctest/doctest.h>

#include "lib/pipelines/bagel/checkpoint.h"
#include "lib/pipelines/mot/text_decoder_cuda.h"
#include "lib/session/make_runtime.h"
#include "tests/pipelines/session_cases.h"
#include "tests/pipelines/text_decoder_cases.h"

namespace diptych {
namespace {

// Whether texts of this checkpoint are written by a graph.
bool takes_graph(const std::string& dtype, const std::string& attention,
                 const std::string& kernels) {
  Log log{LogLevel::quiet};
  RunConfig config = test::paint_request("", 0, 16, 16);
  config.device = {DeviceChoice::Kind::cuda};
  config.dtype = parse_choice<DtypeChoice>(dtype).value();
  config.read_attention.default_backend = attention;
  config.kernels = parse_choice<KernelPolicy>(kernels).value();
  const Runtime runtime = make_runtime(config, log);
  const std::unique_ptr<BagelCheckpoint> opened =
      BagelCheckpoint::open(config.model, false, runtime);
  BagelCheckpoint& checkpoint = *opened;
  checkpoint.load();
  checkpoint.load_head();
  return make_graph_decoder(checkpoint.model.language_model, 32, runtime) != nullptr;
}

TEST_CASE("who gets a graph") {
  for (const char* dtype : {"float32", "bfloat16"}) {
    CHECK(takes_graph(dtype, "auto", "automatic"));
    CHECK(takes_graph(dtype, "auto", "strict"));
    CHECK_FALSE(takes_graph(dtype, "auto", "reference"));
    CHECK_FALSE(takes_graph(dtype, "math", "automatic"));
  }
}

TEST_CASE("a graph's text ends where that of single steps does, and its draws with it") {
  test::check_tokens("cuda");
}

TEST_CASE("watched, stopped, or launched by hand, a graph's step writes the same text") {
  test::check_watching_and_stopping("cuda", "float32");
  test::check_watching_and_stopping("cuda", "bfloat16");
}

// Last: a profiler stays in the way of what runs after it.
TEST_CASE("a graph is launched whole, and only where it is wished") {
  test::check_launches("cuda");
}

}  // namespace
}  // namespace diptych
