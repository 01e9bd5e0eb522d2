#include "apps/diptych/failure.h"

#include <csignal>
#include <filesystem>
#include <new>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lib/runtime/ranks.h"
#include "lib/tensor/finite.h"

namespace diptych {
namespace {

// The texts of libraries go on with where in them it happened.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Failure out_of_memory(std::string text, bool of_host = false) {
  if (text.starts_with("[enforce fail")) {
    text.erase(0, text.find(". ") + 2);  // libtorch's place
    of_host = true;
  }
  return {kRunFailed,
          fmt::format("{} (try {}--vae-tiling on, --cfg-mode sequential, a smaller size, or "
                      "--dtype bfloat16)",
                      first_line(text), of_host ? "" : "--offload layers, "),
          true,
          {},
          true};
}

// libtorch reports some exhausted memory as a plain error.
bool speaks_of_memory(const std::string& text) {
  for (const char* words : {"out of memory", "not enough memory", "can't allocate memory",
                            "CUBLAS_STATUS_ALLOC_FAILED"}) {
    if (text.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

Failure describe_failure(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const BadWeights& error) {  // no request can succeed with them
    return {kBadInput, error.what()};
  } catch (const InputError& error) {
    return {kBadInput, error.what(), true, error};
  } catch (const std::filesystem::filesystem_error& error) {  // a path, not what is done with it
    const std::string path = error.path1().empty() ? "the current folder" : error.path1().string();
    return {kBadInput, fmt::format("{}: {}", path, error.code().message()), true};
  } catch (const CheckFailed& error) {
    return {kCheckFailed, error.what()};
  } catch (const Interrupted& stop) {
    // Whoever closed the pipe has seen enough, and wants no message.
    return {kSignalBase + stop.signal_number, stop.signal_number == SIGPIPE ? "" : stop.what()};
  } catch (const OtherRankFailed& other) {  // which has said why
    return {other.exit_code, ""};
  } catch (const RankFailed& failed) {
    return {failed.exit_code, failed.text};
  } catch (const c10::OutOfMemoryError& error) {
    return out_of_memory(error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    // The device takes no more work from this process.
    const std::string text = error.what_without_backtrace();
    return speaks_of_memory(text) ? out_of_memory(text)
                                  : Failure{kRunFailed, first_line(text), false, {}, true};
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return speaks_of_memory(text) ? out_of_memory(text)
                                  : Failure{kRunFailed, first_line(text), true};
  } catch (const std::bad_alloc&) {
    return out_of_memory("out of memory", true);
  } catch (const WriteError& error) {
    return {kRunFailed, error.what()};
  } catch (const RunError& error) {
    return {kRunFailed, error.what(), true};
  } catch (const std::exception& error) {
    return {kRunFailed, first_line(error.what())};
  }
}

}  // namespace diptych
