"""The code that is running."""

from trueloop.tracing.running_code import program_stack, user_files


def test_the_files_of_a_stack_are_user_files():
    assert __file__ in user_files(program_stack())
