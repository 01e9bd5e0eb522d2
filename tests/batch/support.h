// Lists and defaults for the tests of lib/batch.
#pragma once

#include <string>

#include "lib/batch/list.h"
#include "lib/pipelines/bagel/family_config.h"
#include "tests/support/clip_family.h"
#include "tests/support/folder.h"
#include "tests/support/tiny_model.h"

namespace diptych::test {

// What flags give where none was given: no stage config, the tiny checkpoint.
inline Resolved plain_defaults() {
  Sources sources;
  sources.families = {&bagel_config()};
  sources.flags["-m,--model"] = {test::kTinyCheckpoint};
  return resolve_sources(sources);
}

inline BatchList read_list(const Folder& folder, const std::string& name, const std::string& text) {
  return read_batch_list(folder.write(name, text));
}

// The message for this list, without the folder in front of the file's name.
inline std::string list_error(const std::string& name, const std::string& text) {
  const Folder folder;
  std::string message = message_of([&] { read_list(folder, name, text); });
  const std::string prefix = folder.path().string() + "/";
  for (std::size_t at; (at = message.find(prefix)) != std::string::npos;)
    message.erase(at, prefix.size());
  return message;
}

}  // namespace diptych::test
