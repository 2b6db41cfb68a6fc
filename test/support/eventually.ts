/** Waits for a condition, looked at again and again, and fails when it does not come true in time. */
export async function eventually(condition: () => boolean | Promise<boolean>, within = 5_000): Promise<void> {
  const deadline = performance.now() + within;
  while (!(await condition())) {
    if (performance.now() > deadline)
      throw new Error(`Not true within ${within} ms: ${condition.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
