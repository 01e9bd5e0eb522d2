// The program that does the work: PREFIX/libexec/diptych. The command itself is start.cpp.
#include "apps/diptych/current_folder.h"
#include "apps/diptych/program.h"
#include "apps/diptych/standard_streams.h"

int main(int argc, char** argv) {
  diptych::keep_standard_streams();
  diptych::return_to_deleted_folder();
  diptych::run_program(argc, argv);
}
